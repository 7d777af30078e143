"""A DataLoader that somebody else made, as a loader: equal steps and right means, but no order of ours.

What can be resumed and what cannot stands at `wrap_dataloader`, and is logged once by root.

    mine = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset, num_replicas=size, rank=rank))
    train = wrap_dataloader(run, mine)
    for batch in train:                        # Collective: every few steps ranks exchange how many samples they have
        step(batch.data)
        batch.commit()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hvdtrain.collectives import Collectives
from hvdtrain.data.agreement import Piece
from hvdtrain.data.stream import LOOKAHEAD, CommunicatingJob, StreamLoader
from hvdtrain.errors import ConfigError

LOGGER = logging.getLogger("hvdtrain.data")


class ForeignStream:
    """A DataLoader that somebody else made, on this rank.

    Args:
        dataloader: anything that gives batches anew each time it is iterated.
        samples_of: the number of samples in a batch.
        size: number of ranks.
    """

    def __init__(self, dataloader: Any, samples_of: Callable[[Any], int], size: int) -> None:
        self._dataloader, self._samples_of = dataloader, samples_of
        self.division: list[int | None] = [
            size,
            getattr(dataloader, "num_workers", None),
            getattr(dataloader, "batch_size", None),
        ]

    def open_epoch(self, epoch: int) -> Iterator[Piece]:
        """See `Stream`; samplers that have a `set_epoch` are told."""
        for owner in (self._dataloader, *(getattr(self._dataloader, n, None) for n in ("sampler", "batch_sampler"))):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        for data in self._dataloader:
            yield Piece(data, self._samples_of(data))

    def end_epoch(self, collectives: Collectives) -> None:
        """Collective: nothing; what its sampler does cannot be checked."""

    def close(self) -> None:
        """Nothing; its workers are its own."""


def samples_in(data: Any) -> int:
    """The length of the first tensor in a batch, along dimension 0.

    Raises:
        ConfigError: there is none.
    """
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else [data]
    for value in values:
        if isinstance(value, torch.Tensor) and value.ndim:
            return len(value)
    raise ConfigError(
        "count the samples of a batch",
        found=f"a {type(data).__name__} without a tensor at its top",
        remedy="wrap_dataloader(run, dataloader, samples_of=...)",
    )


_STATEMENT = (
    "a DataLoader of your own is wrapped: every rank makes the same number of steps and means are right, but which "
    "samples a rank gets is up to its sampler. A resume reads and leaves out the steps before it, which is exact only "
    "where the order is a function of the epoch and ranks, workers and batch are as before; at another size the epoch "
    "begins anew. There is no ledger and no exactly-once, and its workers may outlive a killed rank (hvdtrain.loader "
    "has all of these)"
)


def wrap_dataloader(
    run: CommunicatingJob,
    dataloader: Any,
    *,
    samples_of: Callable[[Any], int] = samples_in,
    lookahead: int = LOOKAHEAD,
    microbatches: int = 1,
) -> StreamLoader:
    """The batches of a DataLoader that you made, as a loader of hvdtrain's.

    What holds: every rank makes the same number of steps, a rank that runs out early gets empty batches, and
    `global_samples` is right, so gradients are means over what all ranks had. `set_epoch` is called on its sampler.

    What can be resumed: the epoch, and the step within it by reading and leaving out the steps before, if the order is
    a function of the epoch (a `DistributedSampler` is; a plain shuffle is not) and ranks, workers and batch are as
    before. What cannot: anything at another size (the epoch begins anew), random augmentation, exactly-once (a
    `DistributedSampler` pads), and the ledger. Its worker processes are its own: give it
    `worker_init_fn=WorkerStart(os.getpid())` and `multiprocessing_context=worker_context()` of
    `hvdtrain.data.lifeline`, or they may outlive a killed rank.

    Args:
        run: from `hvdtrain.init`.
        dataloader: this rank's; dividing the data among ranks is its sampler's task.
        samples_of: the number of samples in a batch; the length of its first tensor by default.
        lookahead: steps per exchange of counts, and batches held in memory for it.
        microbatches: how many pieces `Batch.split` makes by default.

    Raises:
        ConfigError: a number is impossible.
    """
    if run.topology.is_root:
        LOGGER.warning(_STATEMENT)
    stream = ForeignStream(dataloader, samples_of, run.topology.size)
    return StreamLoader(stream, run.collectives, lookahead=lookahead, microbatches=microbatches)
