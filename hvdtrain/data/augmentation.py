"""Randomness that belongs to a sample: seeded by (seed, epoch, sample index), whoever loads it and wherever.

A random crop of sample 17 in epoch 3 is therefore the same on any number of ranks and workers, and after any resume.
The loader supplies seed and epoch; the transform draws from the generator that it is given, and from nothing else.

    def flip(sample: tuple[Tensor, int], generator: torch.Generator) -> tuple[Tensor, int]:
        image, label = sample
        return (image.flip(-1) if torch.rand((), generator=generator) < 0.5 else image), label

    train = hvdtrain.loader(run, Augmented(dataset, flip), global_batch_size=64)

A transform that knows only the global generators of Python, numpy and torch (as most of torchvision's do) is run by
`Augmented(dataset, transform, reseed=True)`, which seeds all three for the sample and puts them back afterwards.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch


class MapDataset(Protocol):
    """A data set with random access: what `torch.utils.data.Dataset` with a length is."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Which sample in which epoch of which run: all that its randomness may depend on."""

    seed: int
    epoch: int
    index: int

    def entropy(self) -> int:
        """A number below 2**64, independent for each key."""
        text = f"hvdtrain sample: seed={self.seed} epoch={self.epoch} index={self.index}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def generator(self) -> torch.Generator:
        """A torch generator on the CPU, seeded for this key."""
        return torch.Generator().manual_seed(self.entropy() - 2**63)  # torch takes signed seeds


@runtime_checkable
class KeyedDataset(Protocol):
    """A data set whose samples depend on the epoch; the loader asks it by key."""

    def __len__(self) -> int: ...

    def sample(self, key: SampleKey) -> Any:
        """The sample `key.index`, as it is in `key.epoch`."""


class Augmented:
    """A data set whose samples pass through a random transform; see the module's synopsis.

    Args:
        dataset: the samples; may itself be keyed.
        transform: called with a sample and its generator; with `reseed`, with the sample alone.
        reseed: seed the global generators of Python, numpy and torch for each sample instead.
    """

    def __init__(self, dataset: MapDataset, transform: Callable[..., Any], *, reseed: bool = False) -> None:
        self.dataset = dataset
        self.transform = transform
        self.reseed = reseed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """The sample as it is in epoch 0 of seed 0; a loader uses `sample`."""
        return self.sample(SampleKey(seed=0, epoch=0, index=index))

    def sample(self, key: SampleKey) -> Any:
        """The sample `key.index`, transformed with the randomness of `key`."""
        plain = self.dataset.sample(key) if isinstance(self.dataset, KeyedDataset) else self.dataset[key.index]
        if not self.reseed:
            return self.transform(plain, key.generator())
        with seeded_globals(key.entropy()):
            return self.transform(plain)


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Within the context the global generators of Python, numpy and torch (CPU) start from `seed`; then as before."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed - 2**63)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
