"""The position of a run in the global order, as state: what is committed counts, what was only prefetched does not.

The state is (seed, epoch, samples consumed by committed steps) and says nothing of ranks, so it is right at any size
and any batch size, on every rank alike.

    sampler = Sampler(1437, seed=1, global_batch_size=64, rank=0, size=2)
    for share in sampler.shares():          # from the committed position to the end of the epoch
        ...                                 # share.indices: int64 of shape (share.samples,), this rank's
        sampler.commit(share)               # the update that used them was made
    sampler.next_epoch()
    other = Sampler(1437, seed=1, global_batch_size=32, rank=2, size=3)
    other.load_state_dict(sampler.state_dict())                                      # goes on, at another size
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from hvdtrain.data.partition import REMAINDERS, Remainder, next_step, share_of, steps_left, wrap
from hvdtrain.data.permutation import MAX_SAMPLES, ORDER_NAME, Indices, Permutation
from hvdtrain.errors import ConfigError, OrderError

# Shares are computed for several steps at once: a slice of 4096 costs little more than one of 64.
_BLOCK_SAMPLES = 4096
_BLOCK_STEPS = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Share:
    """What one rank takes of one step.

    Attributes:
        epoch: the epoch it belongs to.
        start: global position of the step's first sample, over all ranks.
        stop: global position after its last; under `pad` it may exceed the number of samples.
        indices: this rank's samples, int64 of shape (samples,); may be empty.
    """

    epoch: int
    start: int
    stop: int
    indices: Indices

    @property
    def samples(self) -> int:
        """Samples of this rank."""
        return len(self.indices)

    @property
    def global_samples(self) -> int:
        """Samples of the step over all ranks; under `pad` the repeated ones as well, since they are averaged too."""
        return self.stop - self.start


class Sampler:
    """This rank's shares of the steps, and how many of them are committed.

    Args:
        n: samples in the data set.
        seed: of the order; the same on all ranks.
        global_batch_size: samples per step over all ranks.
        rank: this rank.
        size: number of ranks.
        shuffle: a new order for each epoch; else that of the data set.
        remainder: what to do where the batch does not divide the epoch: `keep` a smaller last step, `drop` it, or
            `pad` it with the epoch's first samples.

    Raises:
        ConfigError: one of the numbers is impossible.
    """

    def __init__(
        self,
        n: int,
        *,
        seed: int,
        global_batch_size: int,
        rank: int,
        size: int,
        shuffle: bool = True,
        remainder: Remainder = "keep",
    ) -> None:
        _check(n, global_batch_size, rank, size, remainder)
        self.n, self.seed, self.global_batch_size = n, seed, global_batch_size
        self.rank, self.size = rank, size
        self.shuffle = shuffle
        self.remainder: Remainder = remainder
        self.epoch = 0
        self.consumed = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch."""
        return self._steps_after(0)

    @property
    def steps_left(self) -> int:
        """Steps of this epoch after the committed ones."""
        return self._steps_after(self.consumed)

    @property
    def finished(self) -> bool:
        """Whether every step of this epoch is committed."""
        return self.steps_left == 0

    def _steps_after(self, consumed: int) -> int:
        return steps_left(
            n=self.n, consumed=consumed, global_batch_size=self.global_batch_size, remainder=self.remainder
        )

    def shares(self) -> Iterator[Share]:
        """This rank's shares of the steps after the committed position, to the end of the epoch.

        May be read ahead of `commit`, as far as one likes.
        """
        order = Permutation(self.n, seed=self.seed, epoch=self.epoch, shuffle=self.shuffle)
        block_steps = min(max(1, _BLOCK_SAMPLES * self.size // self.global_batch_size), _BLOCK_STEPS)
        epoch, steps = self.epoch, self._steps()
        while block := list(islice(steps, block_steps)):
            parts = [share_of(step, rank=self.rank, size=self.size) for step in block]
            positions = np.concatenate([np.arange(part.start, part.stop, dtype=np.int64) for part in parts])
            samples = order.at(wrap(positions, self.n))
            samples.setflags(write=False)
            cuts = np.cumsum([len(part) for part in parts])[:-1]
            for step, indices in zip(block, np.split(samples, cuts), strict=True):
                yield Share(epoch=epoch, start=step.start, stop=step.stop, indices=indices)

    def _steps(self) -> Iterator[range]:
        consumed = self.consumed
        while step := next_step(
            n=self.n, consumed=consumed, global_batch_size=self.global_batch_size, remainder=self.remainder
        ):
            yield step
            consumed = step.stop

    def commit(self, share: Share) -> None:
        """Move the position behind `share`, whose update was made.

        Raises:
            OrderError: it is not the share after the committed position.
        """
        if (share.epoch, share.start) != (self.epoch, self.consumed):
            raise OrderError(
                f"commit the samples at positions {share.start} to {share.stop} of epoch {share.epoch}",
                found=f"{self.consumed} samples of epoch {self.epoch} are committed",
                remedy="commit each batch once, in the order in which the loader gave them",
            )
        self.consumed = min(share.stop, self.n)

    def next_epoch(self) -> None:
        """Begin the next epoch.

        Raises:
            OrderError: this one has steps that are not committed.
        """
        if not self.finished:
            raise OrderError(
                f"begin epoch {self.epoch + 1}",
                found=f"{self.steps_left} steps of epoch {self.epoch} are not committed",
                remedy="commit every batch of an epoch before the next begins",
            )
        self.epoch, self.consumed = self.epoch + 1, 0

    @property
    def order(self) -> str:
        """The name of the rule that gives the order; a state of another order is refused."""
        return ORDER_NAME if self.shuffle else "sequential"

    def state_dict(self) -> dict[str, Any]:
        """The position; JSON values only, equal on all ranks."""
        return {
            "n": self.n,
            "seed": self.seed,
            "order": self.order,
            "epoch": self.epoch,
            "consumed": self.consumed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position; size, batch size and remainder policy may be others.

        Raises:
            ConfigError: the state is of another data set, seed or order, or is no state of a sampler.
        """
        _check_position(state)
        mine = self.state_dict()
        faults = [f"{key} was {state[key]!r} and is {mine[key]!r}" for key in _IDENTITY if state[key] != mine[key]]
        if faults:
            raise ConfigError(
                "continue in the saved order of samples",
                found="; ".join(faults),
                remedy="use the data set, seed and shuffle of the saved run, or start a new run",
            )
        self.epoch, self.consumed = state["epoch"], state["consumed"]


_IDENTITY = ("n", "seed", "order")


def _check(n: int, global_batch_size: int, rank: int, size: int, remainder: str) -> None:
    faults = []
    if not 0 <= n <= MAX_SAMPLES:
        faults.append(f"{n} samples (0 to 2**62 are possible)")
    if global_batch_size < 1:
        faults.append(f"a global batch of {global_batch_size} samples (at least 1)")
    if not 0 <= rank < size:
        faults.append(f"rank {rank} of {size}")
    if remainder not in REMAINDERS:
        faults.append(f"remainder {remainder!r} (one of {', '.join(REMAINDERS)})")
    if faults:
        raise ConfigError("sample a data set", found="; ".join(faults))


def _check_position(state: dict[str, Any]) -> None:
    missing = [key for key in (*_IDENTITY, "epoch", "consumed") if key not in state]
    numbers = [state.get(key) for key in ("n", "epoch", "consumed")]
    whole = all(type(number) is int and number >= 0 for number in numbers)
    if missing or not whole or state["consumed"] > state["n"]:
        raise ConfigError("continue in the saved order of samples", found=f"no state of a sampler: {state!r}")
