"""Which samples of an epoch were used, in no more memory than it takes.

A few samples of a huge data set are kept as sorted runs, 8 bytes each; as bits once a bit for every sample is smaller.

    used = Usage(10**9)
    used.add(np.array([7, 3, 7]))              # array([7]): what was used before, or twice in this call
    used.count                                 # 2 different samples
    used.missing(limit=10)                     # array([0, 1, 2, 4, ...]): the first ten that were not used
    3 in used                                  # True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvdtrain.data.permutation import Indices

_ALWAYS_BITS = 2**26  # 8 MiB
_BLOCK_BYTES = 2**20


class Usage:
    """A set of samples in [0, n) that notices repetitions.

    Args:
        n: samples in the data set.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.count = 0
        self._runs: list[Indices] = []
        self._bits: NDArray[np.uint8] | None = None
        if n <= _ALWAYS_BITS:
            self._bits = np.zeros(-(-n // 8), dtype=np.uint8)

    def add(self, samples: Indices) -> Indices:
        """Note that these were used; those that had been, or stand here twice, in ascending order.

        Raises:
            IndexError: a sample is outside [0, n).
        """
        if samples.size and (samples.min() < 0 or samples.max() >= self.n):
            raise IndexError(f"samples outside 0 to {self.n - 1}")
        distinct, times = np.unique(samples, return_counts=True)
        before = self._contains(distinct)
        fresh = distinct[~before]
        self._insert(fresh)
        self.count += len(fresh)
        return distinct[before | (times > 1)]

    def __contains__(self, sample: int) -> bool:
        return bool(self._contains(np.array([sample], dtype=np.int64))[0])

    def _contains(self, samples: Indices) -> NDArray[np.bool_]:
        if self._bits is not None:
            present: NDArray[np.bool_] = self._bits[samples >> 3] & _mask(samples) != 0
            return present
        found = np.zeros(len(samples), dtype=np.bool_)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, samples), len(run) - 1)
            found |= run[at] == samples
        return found

    def _insert(self, samples: Indices) -> None:
        if self._bits is not None:
            np.bitwise_or.at(self._bits, samples >> 3, _mask(samples))
        elif samples.size:
            self._runs.append(samples)
            while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
                self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]))]
            if 64 * self.count > self.n:
                self._to_bits()

    def _to_bits(self) -> None:
        runs, self._runs = self._runs, []
        self._bits = np.zeros(-(-self.n // 8), dtype=np.uint8)
        for run in runs:
            np.bitwise_or.at(self._bits, run >> 3, _mask(run))

    def missing(self, limit: int) -> Indices:
        """The first samples that were not used, at most so many, in ascending order."""
        if self._bits is None:
            self._to_bits()
        assert self._bits is not None
        found: list[Indices] = []
        for at in range(0, len(self._bits), _BLOCK_BYTES):
            block = np.unpackbits(self._bits[at : at + _BLOCK_BYTES], bitorder="little")
            absent = np.flatnonzero(block == 0) + 8 * at
            found.append(absent[absent < self.n][: limit - sum(map(len, found))])
            if sum(map(len, found)) >= limit:
                break
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _mask(samples: Indices) -> NDArray[np.uint8]:
    mask: NDArray[np.uint8] = np.left_shift(1, samples & 7).astype(np.uint8)
    return mask
