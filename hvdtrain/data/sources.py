"""Sources without random access, divided once among all workers of all ranks.

A slot is one worker of one rank; each source says what its part of an epoch is, and leaves a receipt by which the
parts can be checked against the whole.

    Divided(lambda epoch: read_lines(path))                # every slot reads everything and keeps each k-th sample
    Sharded(["s0.tar", "s1.tar", ...], read_samples)       # every slot reads whole shards, in an order of the epoch
    stream = stream_loader(run, source, global_batch_size=64, num_workers=2)

With worker processes, the functions given must be importable there: functions of a module, not lambdas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hvdtrain.data.coverage import Receipt, fingerprint
from hvdtrain.data.permutation import Permutation


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One worker of one rank in one epoch.

    Attributes:
        seed: of the run.
        epoch: which epoch is read.
        rank: the rank.
        size: number of ranks.
        worker: this worker among those of its rank; 0 where the rank itself reads.
        workers: how many those are, at least 1.
    """

    seed: int
    epoch: int
    rank: int
    size: int
    worker: int = 0
    workers: int = 1

    @property
    def number(self) -> int:
        """This slot among all; neighbours are on different ranks, so that few parts are spread over many ranks."""
        return self.worker * self.size + self.rank

    @property
    def count(self) -> int:
        """All slots of the job."""
        return self.size * self.workers


class Source(Protocol):
    """Something that can be read in parts."""

    def read(self, slot: Slot, receipt: Receipt | None) -> Iterator[Any]:
        """The samples of one slot's part; where there is a receipt, it is complete when the part has ended."""


class Divided:
    """A source that only gives everything in order: each slot keeps every k-th sample.

    Args:
        open_epoch: gives an iterable over all samples of an epoch, the same on every slot.
        key: what identifies a sample for the check, where hashing its contents is too slow or impossible.
    """

    def __init__(
        self, open_epoch: Callable[[int], Iterable[Any]], *, key: Callable[[Any], int | str] | None = None
    ) -> None:
        self._open_epoch = open_epoch
        self._key = key

    def read(self, slot: Slot, receipt: Receipt | None) -> Iterator[Any]:
        """See `Source`."""
        for position, sample in enumerate(self._open_epoch(slot.epoch)):
            mine = position % slot.count == slot.number
            if receipt is not None:
                print_of_sample = fingerprint(sample if self._key is None else self._key(sample))
                receipt.whole.add(print_of_sample)
                if mine:
                    receipt.kept.add(print_of_sample)
            if mine:
                yield sample


class Sharded:
    """A source in named parts, each read whole by one slot; the order of the parts is another in each epoch.

    The check is that each shard was read to its end exactly once; samples within shards are the shards' affair.

    Args:
        shards: names of the parts, each different; the same list on every rank.
        read_shard: gives the samples of one part.
        shuffle: an order of the parts for each epoch; else the given one.
    """

    def __init__(
        self, shards: Sequence[str], read_shard: Callable[[str], Iterable[Any]], *, shuffle: bool = True
    ) -> None:
        self._shards = list(shards)
        self._read_shard = read_shard
        self._shuffle = shuffle

    def read(self, slot: Slot, receipt: Receipt | None) -> Iterator[Any]:
        """See `Source`."""
        order = Permutation(len(self._shards), seed=slot.seed, epoch=slot.epoch, shuffle=self._shuffle)
        for shard in self._shards if receipt is not None else ():
            assert receipt is not None
            receipt.whole.add(fingerprint(shard))
        for number in order[slot.number :: slot.count].tolist():
            yield from self._read_shard(self._shards[number])
            if receipt is not None:
                receipt.kept.add(fingerprint(self._shards[number]))
