"""Digits with a random shift and noise of each sample: the same samples on any number of ranks and workers."""

from dataclasses import replace

import torch

from hvdtrain.data.augmentation import Augmented
from hvdtrain.recipes import digits

DEFAULTS = digits.DEFAULTS


def shift(sample, generator):
    image, label = sample
    rows = int(torch.randint(-1, 2, (), generator=generator))
    return image.roll(rows, dims=1) + 0.05 * torch.randn(image.shape, generator=generator), label


def recipe(config):
    plain = digits.recipe(config)
    return replace(plain, train_data=Augmented(plain.train_data, shift))
