"""Random generators go on exactly where they were saved."""

import random

import numpy as np
import torch

from hvdtrain.statetree import flatten, unflatten
from hvdtrain.train.generators import generator_state, set_generator_state


def draws():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()


def test_a_saved_state_gives_the_same_draws_again():
    random.gauss(0, 1)  # half of a pair is kept inside
    np.random.randn()
    flat = flatten(generator_state())
    first = draws()
    set_generator_state(unflatten(flat.skeleton, flat.tensors))
    assert draws() == first
