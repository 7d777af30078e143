"""Batches of a data set with random access, in the one global order, resumable to the sample at any size.

Iterating gives the rest of the current epoch, from the committed position; when all of it is committed, the next
iteration begins the next epoch. Every rank sees the same number of batches, some perhaps without samples of its own.

    train = loader(run, dataset, global_batch_size=64, num_workers=2)
    held_out = evaluation_loader(run, other, batch_size=256)
    for batch in train:
        step(batch.data)
        batch.commit()                     # from now on it counts as used
    state = train.state_dict()             # the same on all ranks; JSON values only
    for batch in held_out:                 # every sample exactly once over all ranks; nothing to commit
        ...
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from hvdtrain.data.augmentation import KeyedDataset, MapDataset
from hvdtrain.data.batch import Batch
from hvdtrain.data.partition import Remainder, evaluation_batches
from hvdtrain.data.pipeline import Collate, Pipeline
from hvdtrain.data.sampler import Sampler, Share
from hvdtrain.errors import ConfigError
from hvdtrain.topology import Topology

LOGGER = logging.getLogger("hvdtrain.data")


class Job(Protocol):
    """What a loader must know of a run: `hvdtrain.runtime.Run` is one."""

    @property
    def topology(self) -> Topology:
        """The position of this rank."""

    @property
    def seed(self) -> int:
        """The seed that all ranks share."""


class Loader:
    """The batches of one rank, epoch after epoch; see the module's synopsis.

    Args:
        dataset: with random access; `Augmented` gives its samples a randomness of their own.
        sampler: decides which samples, and holds the position.
        collate: makes one batch of a list of samples; torch's `default_collate` if None.
        num_workers: processes that read and collate; 0 does it in the rank.
        prefetch: batches that each worker holds ready.
        pin_memory: copy batches to pinned memory for the GPU.
        microbatches: how many pieces `Batch.split` makes by default.

    Raises:
        ConfigError: a number is impossible, or the sampler is for another number of samples.
    """

    def __init__(
        self,
        dataset: MapDataset | KeyedDataset,
        sampler: Sampler,
        *,
        collate: Collate | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        microbatches: int = 1,
    ) -> None:
        check_loading(num_workers=num_workers, prefetch=prefetch, microbatches=microbatches)
        if len(dataset) != sampler.n:
            raise ConfigError("load a data set", found=f"it has {len(dataset)} samples, its sampler {sampler.n}")
        self.sampler = sampler
        self.microbatches = microbatches
        self._pipeline = Pipeline(
            dataset,
            seed=sampler.seed,
            collate=collate,
            num_workers=num_workers,
            prefetch=prefetch,
            pin_memory=pin_memory,
        )

    @property
    def epoch(self) -> int:
        """The epoch that was last begun."""
        return self.sampler.epoch

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self.sampler.steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """The batches after the committed position, to the end of the epoch."""
        if self.sampler.finished and self.sampler.consumed:
            self.sampler.next_epoch()
        for share, collated in self._pipeline.run(self.sampler.shares()):
            commit = partial(self.sampler.commit, share)
            yield batch_of(share, collated.data, collated.indices, commit, self.microbatches)

    def state_dict(self) -> dict[str, Any]:
        """The position in the order; the same on all ranks, JSON values only."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position; takes effect at the next iteration.

        Raises:
            ConfigError: the state is of another data set, seed or order.
        """
        self.sampler.load_state_dict(state)

    def close(self) -> None:
        """End the worker processes; the end of the rank does so, too."""
        self._pipeline.close()


class EvaluationLoader:
    """One rank's batches of an evaluation: every sample once over all ranks, never padded.

    Ranks may have different numbers of batches, so nothing may communicate within the loop; reduce by counts after it.
    """

    def __init__(self, pipeline: Pipeline, batches: list[range], n: int) -> None:
        self._pipeline = pipeline
        self._batches = batches
        self.n = n

    def __len__(self) -> int:
        """Batches of this rank."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """All batches of this rank, from the first, each time."""
        shares = (
            Share(epoch=0, start=part.start, stop=part.stop, indices=np.arange(part.start, part.stop, dtype=np.int64))
            for part in self._batches
        )
        for share, collated in self._pipeline.run(shares):
            yield batch_of(share, collated.data, collated.indices)

    def close(self) -> None:
        """End the worker processes; the end of the rank does so, too."""
        self._pipeline.close()


def check_random_access(dataset: object) -> None:
    """Refuse what has no length or no samples by index, and name the function that takes it.

    Raises:
        ConfigError: it has not.
    """
    if isinstance(dataset, DataLoader):
        remedy = "hvdtrain.wrap_dataloader(run, dataloader), or give the data set itself"
    elif isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        remedy = "hvdtrain.stream_loader(run, source, ...); sources are in hvdtrain.data.sources"
    else:
        return
    found = f"a {type(dataset).__name__}, which has no length or no samples by index"
    raise ConfigError("load a data set with random access", found=found, remedy=remedy)


def batch_of(share: Share, data: Any, indices: Any, commit: Any = None, microbatches: int = 1) -> Batch:
    """The batch that a share became."""
    return Batch(
        data=data,
        samples=len(indices),
        global_samples=share.global_samples,
        epoch=share.epoch,
        start=share.start,
        stop=share.stop,
        indices=indices,
        microbatches=microbatches,
        **({} if commit is None else {"on_commit": commit}),
    )


def check_loading(*, num_workers: int = 0, prefetch: int = 2, microbatches: int = 1, batch_size: int = 1) -> None:
    """Refuse impossible numbers, all at once.

    Raises:
        ConfigError: at least one of them is.
    """
    least = {"num_workers": (num_workers, 0), "prefetch": (prefetch, 1)}
    least |= {"microbatches": (microbatches, 1), "batch_size": (batch_size, 1)}
    faults = [f"{name}={value} (at least {low})" for name, (value, low) in least.items() if value < low]
    if faults:
        raise ConfigError("load a data set", found="; ".join(faults))


def can_pin(asked: bool | None) -> bool:
    """Whether to pin memory: where there is a GPU, unless it was refused."""
    there = torch.cuda.is_available()
    if asked and not there:
        LOGGER.warning("pin_memory is ignored: this rank sees no GPU")
    return there if asked is None else asked and there


def loader(
    run: Job,
    dataset: MapDataset | KeyedDataset,
    *,
    global_batch_size: int,
    shuffle: bool = True,
    seed: int | None = None,
    remainder: Remainder = "keep",
    collate: Collate | None = None,
    num_workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool | None = None,
    microbatches: int = 1,
) -> Loader:
    """The training batches of this rank.

    Args:
        run: from `hvdtrain.init`.
        dataset: the same on every rank, with random access.
        global_batch_size: samples per step over all ranks together.
        shuffle: a new order for each epoch; else that of the data set.
        seed: of the order and of augmentation; the run's if None.
        remainder: where the batch does not divide the epoch: `keep` a smaller last step, `drop` it, or `pad` it.
        collate: makes one batch of a list of samples; torch's `default_collate` if None.
        num_workers: processes per rank that read and collate; 0 does it in the rank.
        prefetch: batches that each worker holds ready.
        pin_memory: copy batches to pinned memory; where there is a GPU if None.
        microbatches: how many pieces `Batch.split` makes by default.

    Raises:
        ConfigError: a number is impossible, an epoch would have no step at all, or the data set no random access.
    """
    check_random_access(dataset)
    sampler = Sampler(
        len(dataset),
        seed=run.seed if seed is None else seed,
        global_batch_size=global_batch_size,
        rank=run.topology.rank,
        size=run.topology.size,
        shuffle=shuffle,
        remainder=remainder,
    )
    if sampler.steps_per_epoch == 0:
        raise ConfigError(
            f"train on {sampler.n} samples in global batches of {global_batch_size}",
            found=f"not one step in an epoch (remainder: {remainder})",
            remedy="a smaller global_batch_size, or remainder=keep" if sampler.n else "a data set that has samples",
        )
    return Loader(
        dataset,
        sampler,
        collate=collate,
        num_workers=num_workers,
        prefetch=prefetch,
        pin_memory=can_pin(pin_memory),
        microbatches=microbatches,
    )


def evaluation_loader(
    run: Job,
    dataset: MapDataset | KeyedDataset,
    *,
    batch_size: int,
    collate: Collate | None = None,
    num_workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool | None = None,
) -> EvaluationLoader:
    """This rank's part of an evaluation.

    Args:
        run: from `hvdtrain.init`.
        dataset: the same on every rank, with random access; in its own order, and augmented as in epoch 0 if at all.
        batch_size: samples per batch on this rank, at most.
        collate: makes one batch of a list of samples; torch's `default_collate` if None.
        num_workers: processes per rank that read and collate; 0 does it in the rank.
        prefetch: batches that each worker holds ready.
        pin_memory: copy batches to pinned memory; where there is a GPU if None.

    Raises:
        ConfigError: a number is impossible, or the data set has no random access.
    """
    check_random_access(dataset)
    check_loading(num_workers=num_workers, prefetch=prefetch, batch_size=batch_size)
    n = len(dataset)
    batches = evaluation_batches(n, batch_size=batch_size, rank=run.topology.rank, size=run.topology.size)
    pipeline = Pipeline(
        dataset,
        seed=run.seed,
        collate=collate,
        num_workers=num_workers,
        prefetch=prefetch,
        pin_memory=can_pin(pin_memory),
    )
    return EvaluationLoader(pipeline, batches, n)
