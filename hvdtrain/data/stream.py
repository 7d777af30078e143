"""Batches from what has no random access: sources that are divided once among all ranks and workers.

Every rank gives the same number of batches and knows the global samples of each. A position is a number of steps: it is
exact where the epoch is divided as before (ranks, workers, batch) and its source gives the same again; the batches
before it are then read and left out. Divided otherwise, the epoch begins anew, with a warning. Samples have no numbers,
so there is no ledger.

    train = stream_loader(run, Sharded(shards, read_samples), global_batch_size=64, num_workers=2)
    for batch in train:                        # Collective: every few steps ranks exchange how many samples they have
        step(batch.data)
        batch.commit()
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from hvdtrain.collectives import Collectives
from hvdtrain.data.agreement import Piece, agreed_steps
from hvdtrain.data.batch import Batch
from hvdtrain.data.coverage import Receipt, check_coverage
from hvdtrain.data.loader import Job, can_pin, check_loading
from hvdtrain.data.partition import divide
from hvdtrain.data.pipeline import Collate
from hvdtrain.data.sources import Slot, Source
from hvdtrain.data.workers import Workers
from hvdtrain.errors import ConfigError, OrderError

LOGGER = logging.getLogger("hvdtrain.data")
LOOKAHEAD = 8


class CommunicatingJob(Job, Protocol):
    """What a stream must know of a run: `hvdtrain.runtime.Run` is one."""

    @property
    def collectives(self) -> Collectives:
        """The operations by which ranks agree."""


class Stream(Protocol):
    """One rank's part of a source, epoch by epoch."""

    division: list[int | None]

    def open_epoch(self, epoch: int) -> Iterator[Piece]:
        """The pieces of an epoch, from its beginning."""

    def end_epoch(self, collectives: Collectives) -> None:
        """Collective: called when an epoch was read from its beginning to its end."""

    def close(self) -> None:
        """End worker processes."""


class StreamLoader:
    """The batches of one rank from a stream; like `Loader`, except for what the module says of positions.

    Args:
        stream: this rank's part.
        collectives: of the job.
        lookahead: steps per exchange of counts, and batches held in memory for it; the same on all ranks.
        microbatches: how many pieces `Batch.split` makes by default.
    """

    def __init__(
        self, stream: Stream, collectives: Collectives, *, lookahead: int = LOOKAHEAD, microbatches: int = 1
    ) -> None:
        check_loading(microbatches=microbatches, prefetch=lookahead)
        self._stream = stream
        self._collectives = collectives
        self._lookahead = lookahead
        self.microbatches = microbatches
        self.epoch = 0
        self.steps = 0
        self._over = False

    def __iter__(self) -> Iterator[Batch]:
        """Collective: the batches after the committed position, to the end of the epoch."""
        if self._over:
            self.epoch, self.steps, self._over = self.epoch + 1, 0, False
        epoch, begun_at, start = self.epoch, self.steps, 0
        pieces = self._stream.open_epoch(epoch)
        for step, agreed in enumerate(agreed_steps(pieces, self._collectives, lookahead=self._lookahead)):
            stop = start + agreed.global_samples
            if step >= begun_at:
                yield Batch(
                    data=agreed.piece.data,
                    samples=agreed.piece.samples,
                    global_samples=agreed.global_samples,
                    epoch=epoch,
                    start=start,
                    stop=stop,
                    indices=None,
                    microbatches=self.microbatches,
                    on_commit=partial(self._commit, epoch, step, agreed.last),
                )
            start = stop
        self._stream.end_epoch(self._collectives)

    def _commit(self, epoch: int, step: int, last: bool) -> None:
        if (epoch, step) != (self.epoch, self.steps):
            raise OrderError(
                f"commit step {step} of epoch {epoch}",
                found=f"{self.steps} steps of epoch {self.epoch} are committed",
                remedy="commit each batch once, in the order in which the loader gave them",
            )
        self.steps, self._over = self.steps + 1, last

    def state_dict(self) -> dict[str, Any]:
        """The position; the same on all ranks, JSON values only."""
        return {"epoch": self.epoch, "steps": self.steps, "over": self._over, "division": self._stream.division}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position; where the division is another, from the beginning of its epoch.

        Raises:
            ConfigError: it is no state of a stream.
        """
        if set(state) != {"epoch", "steps", "over", "division"}:
            raise ConfigError("continue in the saved stream of samples", found=f"no state of a stream: {state!r}")
        self.epoch, self.steps, self._over = state["epoch"], state["steps"], state["over"]
        if state["division"] != self._stream.division and self.steps and not self._over:
            LOGGER.warning(
                "epoch %d begins anew: a stream divided as %s cannot go on as %s (ranks, workers, batch), so the "
                "samples of its first %d steps are used twice",
                self.epoch,
                state["division"],
                self._stream.division,
                self.steps,
            )
            self.steps = 0

    def close(self) -> None:
        """End the worker processes; the end of the rank does so, too."""
        self._stream.close()


class _Part(IterableDataset[Any]):
    """What travels to the workers: collated pieces of a slot's part, and its receipt last."""

    def __init__(self, source: Source, slot: Slot, samples: int, collate: Collate | None, check: bool) -> None:
        self._source, self._slot, self._samples = source, slot, samples
        self._collate: Collate = default_collate if collate is None else collate
        self._check = check

    def __iter__(self) -> Iterator[Piece | Receipt]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        one = self._slot
        slot = Slot(seed=one.seed, epoch=one.epoch, rank=one.rank, size=one.size, worker=worker, workers=workers)
        receipt = Receipt() if self._check else None
        samples: list[Any] = []
        for sample in self._source.read(slot, receipt):
            samples.append(sample)
            if len(samples) == self._samples:
                yield Piece(self._collate(samples), len(samples))
                samples = []
        if samples:
            yield Piece(self._collate(samples), len(samples))
        if receipt is not None:
            yield receipt


class SourceStream:
    """This rank's part of a `Source`, read by worker processes or by itself.

    The first epoch that is read from its beginning is checked: nothing twice, nothing left out.

    Args:
        source: what is divided.
        slot: the rank's position; epoch and worker in it do not matter.
        global_batch_size: samples per step over all ranks, while all have some.
        collate: makes one batch of a list of samples.
        workers: the worker processes.
        pin_memory: copy batches to pinned memory for the GPU.
    """

    def __init__(
        self,
        source: Source,
        slot: Slot,
        *,
        global_batch_size: int,
        collate: Collate | None,
        workers: Workers,
        pin_memory: bool,
    ) -> None:
        self._source, self._slot = source, slot
        self._samples = len(divide(global_batch_size, rank=slot.rank, size=slot.size))
        self._collate, self._workers, self._pin_memory = collate, workers, pin_memory
        self._receipts: list[Receipt] = []
        self._checked = False
        self.division: list[int | None] = [slot.size, workers.num_workers, global_batch_size]

    def open_epoch(self, epoch: int) -> Iterator[Piece]:
        """See `Stream`."""
        self._workers.end()
        self._receipts = []
        slot = Slot(seed=self._slot.seed, epoch=epoch, rank=self._slot.rank, size=self._slot.size)
        part = _Part(self._source, slot, self._samples, self._collate, not self._checked)
        loader: DataLoader[Any] = DataLoader(
            part, batch_size=None, pin_memory=self._pin_memory, **self._workers.options()
        )
        for item in self._workers.start(loader):
            if isinstance(item, Receipt):
                self._receipts.append(item)
            else:
                yield item

    def end_epoch(self, collectives: Collectives) -> None:
        """Collective: see `Stream`."""
        if not self._checked:
            self._checked = True
            check_coverage(collectives, self._receipts)

    def close(self) -> None:
        """End the worker processes."""
        self._workers.end()


def stream_loader(
    run: CommunicatingJob,
    source: Source,
    *,
    global_batch_size: int,
    seed: int | None = None,
    collate: Collate | None = None,
    num_workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool | None = None,
    lookahead: int = LOOKAHEAD,
    microbatches: int = 1,
) -> StreamLoader:
    """The training batches of this rank from a source without random access.

    Args:
        run: from `hvdtrain.init`.
        source: `Divided`, `Sharded` or of one's own; the same on every rank.
        global_batch_size: samples per step over all ranks, while all have some; at least one for each.
        seed: of the order; the run's if None.
        collate: makes one batch of a list of samples; torch's `default_collate` if None.
        num_workers: processes per rank that read; 0 does it in the rank.
        prefetch: batches that each worker holds ready.
        pin_memory: copy batches to pinned memory; where there is a GPU if None.
        lookahead: steps per exchange of counts, and batches held in memory for it.
        microbatches: how many pieces `Batch.split` makes by default.

    Raises:
        ConfigError: a number is impossible.
    """
    check_loading(num_workers=num_workers, prefetch=prefetch, batch_size=global_batch_size // run.topology.size)
    slot = Slot(seed=run.seed if seed is None else seed, epoch=0, rank=run.topology.rank, size=run.topology.size)
    stream = SourceStream(
        source,
        slot,
        global_batch_size=global_batch_size,
        collate=collate,
        workers=Workers(num_workers=num_workers, prefetch=prefetch),
        pin_memory=can_pin(pin_memory),
    )
    return StreamLoader(stream, run.collectives, lookahead=lookahead, microbatches=microbatches)
