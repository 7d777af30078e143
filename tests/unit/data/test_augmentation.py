import random

import numpy as np
import torch

from hvdtrain.data.augmentation import Augmented, KeyedDataset, SampleKey, seeded_globals


def draw(sample, generator):
    return sample, torch.randint(2**62, (), generator=generator).item()


def draw_globally(sample):
    return sample, random.random(), np.random.rand(), torch.rand(()).item()


def test_randomness_belongs_to_seed_epoch_and_sample():
    augmented = Augmented(range(100), draw)
    keys = [SampleKey(seed, epoch, index) for seed in (0, 1, -5) for epoch in (0, 1) for index in (0, 1, 10)]
    values = [augmented.sample(key)[1] for key in keys]
    assert len(set(values)) == len(keys)
    assert values == [augmented.sample(key)[1] for key in keys]


def test_keys_that_look_alike_when_joined_are_apart():
    assert SampleKey(1, 11, 1).entropy() != SampleKey(11, 1, 1).entropy() != SampleKey(1, 1, 11).entropy()


def test_global_generators_are_seeded_for_the_sample_and_put_back():
    augmented = Augmented(range(100), draw_globally, reseed=True)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    first = augmented.sample(SampleKey(0, 0, 7))
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    assert augmented.sample(SampleKey(0, 0, 7)) == first
    assert augmented.sample(SampleKey(0, 1, 7)) != first


def test_generators_are_put_back_after_a_fault_as_well():
    before = random.getstate()
    try:
        with seeded_globals(5):
            random.random()
            raise KeyError
    except KeyError:
        pass
    assert random.getstate() == before


def test_augmented_data_sets_can_be_stacked():
    twice = Augmented(Augmented(range(10), draw), lambda sample, generator: draw(sample[1], generator))
    assert isinstance(twice, KeyedDataset)
    key = SampleKey(0, 2, 3)
    assert twice.sample(key)[0] == twice.dataset.sample(key)[1]
    assert len(twice) == 10
    assert twice[3] == twice.sample(SampleKey(0, 0, 3))
