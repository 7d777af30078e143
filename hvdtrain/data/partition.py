"""The arithmetic of data parallelism: one global order is cut into steps, and each step is dealt out to the ranks.

Everything is a function of plain numbers; positions in the order never depend on the number of ranks, so a run can
go on at any size. A step takes the next `global_batch_size` positions; a rank's share is one contiguous part of them,
and the first ranks get one more where the division leaves a rest.

    divide(10, rank=0, size=4)                                          # range(0, 3)
    divide(10, rank=3, size=4)                                          # range(8, 10)
    next_step(n=100, consumed=96, global_batch_size=8)                  # range(96, 100): "keep", the default
    next_step(n=100, consumed=96, global_batch_size=8, remainder="drop")                      # None: the epoch is over
    next_step(n=100, consumed=96, global_batch_size=8, remainder="pad")                       # range(96, 104)
    share_of(range(96, 100), rank=1, size=3)                            # range(98, 99)
    steps_left(n=100, consumed=0, global_batch_size=8)                  # 13
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from hvdtrain.data.permutation import Indices, Permutation

Remainder: TypeAlias = Literal["keep", "drop", "pad"]
REMAINDERS: tuple[Remainder, ...] = get_args(Remainder)


def divide(count: int, *, rank: int, size: int) -> range:
    """This rank's contiguous part of `count` things; the first `count % size` ranks have one more than the others."""
    each, rest = divmod(count, size)
    start = rank * each + min(rank, rest)
    return range(start, start + each + (rank < rest))


def next_step(*, n: int, consumed: int, global_batch_size: int, remainder: Remainder = "keep") -> range | None:
    """The positions of the step after `consumed` of an epoch's `n`; None when the epoch is over.

    Where the batch does not divide what is left, `keep` makes a smaller last step, `drop` none, and `pad` a full one
    whose positions from `n` on mean the epoch's first ones again (see `wrap`).
    """
    left = n - consumed
    if left <= 0 or (remainder == "drop" and left < global_batch_size):
        return None
    taken = global_batch_size if remainder == "pad" else min(left, global_batch_size)
    return range(consumed, consumed + taken)


def steps_left(*, n: int, consumed: int, global_batch_size: int, remainder: Remainder = "keep") -> int:
    """How many steps the epoch still has after `consumed` samples; from 0, how many it has in all."""
    left = max(n - consumed, 0)
    return left // global_batch_size if remainder == "drop" else -(-left // global_batch_size)


def share_of(step: range, *, rank: int, size: int) -> range:
    """This rank's part of a step's positions; empty on the last ranks when there are fewer positions than ranks."""
    part = divide(len(step), rank=rank, size=size)
    return range(step.start + part.start, step.start + part.stop)


def wrap(positions: Indices, n: int) -> Indices:
    """Positions of an epoch, where those that `pad` added beyond `n` begin the epoch again."""
    return positions % n if positions.size and positions[-1] >= n else positions


def samples_of_next_step(
    *,
    n: int,
    seed: int,
    epoch: int,
    consumed: int,
    rank: int,
    size: int,
    global_batch_size: int,
    shuffle: bool = True,
    remainder: Remainder = "keep",
) -> Indices | None:
    """This rank's samples of the step after `consumed`, as int64 of shape (samples,); None when the epoch is over.

    The whole law in one place: `Sampler` gives the same, many steps at a time.
    """
    step = next_step(n=n, consumed=consumed, global_batch_size=global_batch_size, remainder=remainder)
    if step is None:
        return None
    share = share_of(step, rank=rank, size=size)
    positions = wrap(np.arange(share.start, share.stop, dtype=np.int64), n)
    return Permutation(n, seed=seed, epoch=epoch, shuffle=shuffle).at(positions)


def evaluation_batches(n: int, *, batch_size: int, rank: int, size: int) -> list[range]:
    """This rank's batches of an evaluation: over all ranks each of `n` samples stands in exactly one, unpadded.

    A rank's samples are contiguous; ranks may have different numbers of batches, and one may have none.
    """
    part = divide(n, rank=rank, size=size)
    return [part[at : at + batch_size] for at in range(0, len(part), batch_size)]
