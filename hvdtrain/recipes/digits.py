"""Handwritten digits: a small CNN on the 1797 real 8x8 images of scikit-learn (UCI Optical Recognition, 1998).

    hvdtrain launch -np 2 -- hvdtrain run digits

A fifth of the images, chosen once and for all, is held out. There is neither BatchNorm nor dropout, so the training is
the same on any number of ranks, up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hvdtrain.config import Config
from hvdtrain.recipes.recipe import Recipe
from hvdtrain.train.trainer import Output

DEFAULTS = {
    "train.epochs": 15,
    "train.global_batch_size": 64,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.05,
    "optimizer.momentum": 0.9,
    "schedule.name": "cosine",
    "schedule.warmup_steps": 20,
}

HELD_OUT = 360


def recipe(config: Config) -> Recipe:
    """The whole training."""
    images, labels = load()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    return Recipe(
        model=build_model(),
        loss=loss,
        train_data=TensorDataset(images[rest], labels[rest]),
        eval_data=TensorDataset(images[held_out], labels[held_out]),
        metrics=("accuracy",),
    )


def load() -> tuple[Tensor, Tensor]:
    """The images, fp32 of shape (1797, 1, 8, 8), mean 0 and variance 1, and their labels, int64 of shape (1797,)."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)  # (images, channel, row, column)
    images = (images - images.mean()) / images.std()
    return images, torch.tensor(digits.target, dtype=torch.int64)


def build_model() -> nn.Sequential:
    """Two convolutions and two linear layers, 0.15 M parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),  # (batch, 64 * 4 * 4)
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def loss(model: nn.Module, data: Any) -> Output:
    """Cross entropy and accuracy of one microbatch."""
    images, labels = data
    scores = model(images)  # (batch, 10)
    accuracy = (scores.argmax(dim=1) == labels).float().mean()
    return Output(loss=F.cross_entropy(scores, labels), metrics={"accuracy": accuracy})
