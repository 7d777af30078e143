"""A training of fixed numbers whose steps take as long as a test wants: `HVDTRAIN_TEST_STEP_S` seconds each.

`HVDTRAIN_TEST_FAIL_RANK` names a rank whose fifth loss raises.
"""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from hvdtrain.recipes.recipe import Recipe
from hvdtrain.train.trainer import Output

LOSSES = []
DEFAULTS = {"train.epochs": 4, "train.global_batch_size": 16, "optimizer.name": "sgd", "optimizer.lr": 0.05}


def recipe(config):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(640, 8, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return Recipe(model=model, loss=loss, train_data=TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)))


def loss(model, data):
    inputs, wanted = data
    LOSSES.append(None)
    if len(LOSSES) == 5 and os.environ.get("OMPI_COMM_WORLD_RANK") == os.environ.get(
        "HVDTRAIN_TEST_FAIL_RANK", "nobody"
    ):
        raise ArithmeticError("this rank was told to fail")
    time.sleep(float(os.environ.get("HVDTRAIN_TEST_STEP_S", "0")))
    return Output(loss=F.mse_loss(model(inputs), wanted))
