"""A training that computes little and exchanges much: one layer, `HVDTRAIN_TEST_WIDTH` wide (512: a megabyte)."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from hvdtrain.recipes.recipe import Recipe
from hvdtrain.train.trainer import Output

WIDTH = int(os.environ.get("HVDTRAIN_TEST_WIDTH", "512"))
DEFAULTS = {"train.global_batch_size": 24, "optimizer.name": "sgd", "optimizer.lr": 0.001}


def recipe(config):
    torch.manual_seed(0)
    inputs = torch.randn(24 * 64, WIDTH)
    return Recipe(model=nn.Linear(WIDTH, WIDTH), loss=loss, train_data=TensorDataset(inputs))


def loss(model, data):
    (inputs,) = data
    return Output(loss=F.mse_loss(model(inputs), inputs))
