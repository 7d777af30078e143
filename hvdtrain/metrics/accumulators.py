"""Accumulators that merge: a mean is a total and a count, so means of parts join into the mean of the whole.

The identity is `Mean()`, merging is associative, and ranks are parts like any others: they are reduced together, in one
exchange for all metrics, and weighted by what they counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import TypeAlias

import torch
from torch import Tensor

from hvdtrain.collectives import Collectives


@dataclass(frozen=True)
class Mean:
    """A mean as what it is made of.

    Attributes:
        total: the sum of the values.
        count: how many there were, in samples.
    """

    total: float = 0.0
    count: float = 0.0

    def merge(self, other: Mean) -> Mean:
        """The mean over both."""
        return Mean(self.total + other.total, self.count + other.count)

    def compute(self) -> float:
        """The mean; nan of nothing."""
        return self.total / self.count if self.count else nan


Means: TypeAlias = dict[str, Mean]
NOTHING = Mean()


def include(accumulated: Mapping[str, Mean], values: Mapping[str, Tensor | float], samples: float) -> Means:
    """The means over what was accumulated and one batch of so many samples, of which `values` are the means."""
    found = dict(accumulated)
    for name, value in values.items():
        before = found.get(name, NOTHING)
        found[name] = Mean(before.total + float(value) * samples, before.count + samples)
    return found


def compute(accumulated: Mapping[str, Mean]) -> dict[str, float]:
    """The values by name."""
    return {name: mean.compute() for name, mean in accumulated.items()}


def reduce(accumulated: Mapping[str, Mean], collectives: Collectives) -> Means:
    """Collective: the means over all ranks, in one exchange; every rank must have the same names in the same order."""
    pairs = [(mean.total, mean.count) for mean in accumulated.values()]
    local = torch.tensor(pairs, dtype=torch.float64).reshape(len(pairs), 2)  # (metrics, total and count)
    summed = collectives.allreduce_sum(local, "hvdtrain.metrics").tolist()
    return {name: Mean(*pair) for name, pair in zip(accumulated, summed, strict=True)}
