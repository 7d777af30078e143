"""The order of an epoch without memory: a keyed bijection on [0, n), evaluated for any slice of positions.

Nothing here ever holds more than the slice that was asked for, and the values depend on (n, seed, epoch) alone, so any
number of ranks sees one order.

    order = Permutation(10**12, seed=1, epoch=0)
    order[0:4]                                 # array([...]), int64: the samples at the first four positions
    order.at(np.array([7, 10**11]))            # the samples at any positions
    np.sort(Permutation(5, seed=1, epoch=0)[0:5])                   # array([0, 1, 2, 3, 4])
    Permutation(5, seed=1, epoch=0, shuffle=False)[1:3]             # array([1, 2]): the order of the data set

It is a Feistel network over pairs (x div b, x mod b) with a * b just above n, where each round adds a keyed hash of one
half to the other modulo that half's range; what lands outside [0, n) walks on along its cycle, which for large n
happens to one sample in sqrt(n). Source: J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from __future__ import annotations

import hashlib
import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import ConfigError

Indices: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

MAX_SAMPLES = 2**62
ORDER_NAME = "feistel-16"  # stands in saved states: another algorithm would be another order

# Fewer rounds suffice for large n; with 16 even the 120 orders of five samples are equally likely (chi-square test).
_ROUNDS = 16


def _word(value: int) -> Words:
    return np.array(value, dtype=np.uint64)


# Odd multipliers with well spread bits: 2**64 over the golden ratio (Knuth), and one from the "mx3" mixer (J. Maiga).
_SPREAD, _MIX, _HALF = _word(0x9E3779B97F4A7C15), _word(0xBEA225F9EB34556D), _word(32)


def _keys_of(n: int, seed: int, epoch: int) -> list[Words]:
    """Independent 64-bit keys, one for each round."""
    stream = hashlib.shake_256(f"hvdtrain order: n={n} seed={seed} epoch={epoch}".encode()).digest(8 * _ROUNDS)
    return [_word(int.from_bytes(stream[at : at + 8], "little")) for at in range(0, len(stream), 8)]


class Permutation:
    """The samples of one epoch in the order of use.

    Args:
        n: samples in the data set, 0 to 2**62.
        seed: any integer; the same on all ranks.
        epoch: from 0; each has an order of its own.
        shuffle: false gives the identity, whatever the seed.

    Raises:
        ConfigError: n is negative or too large.
    """

    def __init__(self, n: int, *, seed: int, epoch: int, shuffle: bool = True) -> None:
        if not 0 <= n <= MAX_SAMPLES:
            raise ConfigError("order the samples of a data set", found=f"it has {n}; 0 to 2**62 are possible")
        self.n = n
        self.shuffle = shuffle
        rows = math.isqrt(max(n - 1, 0)) + 1
        columns = -(-n // rows) or 1
        self._n, self._rows, self._columns = _word(n), _word(rows), _word(columns)
        self._exact = rows * columns == n
        self._keys = _keys_of(n, seed, epoch) if shuffle else []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, positions: slice) -> Indices:
        """The samples at a slice of positions, as int64 of shape (positions,), clipped to [0, n) like a list's."""
        start, stop, stride = positions.indices(self.n)
        return self._samples(np.arange(start, stop, stride, dtype=np.int64))

    def at(self, positions: Indices) -> Indices:
        """The samples at any positions, as int64 of the same shape.

        Raises:
            IndexError: a position is outside [0, n).
        """
        if positions.size and (positions.min() < 0 or positions.max() >= self.n):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of {self.n} samples")
        return self._samples(positions.astype(np.int64))

    def _samples(self, positions: Indices) -> Indices:
        if not self.shuffle or self.n < 2:
            return positions
        samples = self._encipher(positions.view(np.uint64))
        while not self._exact:
            outside = np.flatnonzero(samples >= self._n)
            if outside.size == 0:
                break
            samples[outside] = self._encipher(samples[outside])
        return samples.view(np.int64)

    def _encipher(self, values: Words) -> Words:
        """One walk through the network: a bijection on [0, rows * columns)."""
        left = values // self._columns
        right = values - left * self._columns
        left_range, right_range = self._rows, self._columns
        hashed, scratch = np.empty_like(values), np.empty_like(values)
        for key in self._keys:
            _hash_below(right, key, left_range, hashed, scratch)
            # left = (left + hashed) mod left_range; both are below it, and unsigned numbers wrap to large ones
            np.add(left, hashed, out=left)
            np.subtract(left, left_range, out=scratch)
            np.minimum(left, scratch, out=left)
            left, right, left_range, right_range = right, left, right_range, left_range
        # the number of rounds is even, so the halves stand where they began
        result: Words = left * self._columns + right
        return result


def _hash_below(values: Words, key: Words, limit: Words, out: Words, scratch: Words) -> None:
    """Write a keyed hash of each value, below `limit` <= 2**32, to `out`."""
    np.add(values, key, out=out)
    np.multiply(out, _SPREAD, out=out)
    np.right_shift(out, _HALF, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _MIX, out=out)
    np.right_shift(out, _HALF, out=out)
    np.multiply(out, limit, out=out)
    np.right_shift(out, _HALF, out=out)
