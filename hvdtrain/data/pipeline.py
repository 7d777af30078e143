"""From shares to collated samples, in the rank itself or in worker processes, always in the order of the shares.

What comes out says which samples are in it as they were read, independent of what was asked for.

    pipeline = Pipeline(dataset, seed=1, num_workers=2)
    for share, collated in pipeline.run(sampler.shares()):
        collated.indices, collated.data               # int64 (samples,); what the collate function gave
    pipeline.close()                                  # ends the workers; the end of the process does, too

A request for no samples gives the collated form of sample 0 cut down to nothing, so that shapes and dtypes are right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, default_collate

from hvdtrain.data.augmentation import KeyedDataset, MapDataset, SampleKey
from hvdtrain.data.batch import cut
from hvdtrain.data.permutation import Indices
from hvdtrain.data.sampler import Share
from hvdtrain.data.workers import Workers

Collate = Callable[[list[Any]], Any]


class Request(NamedTuple):
    """What a worker is asked for."""

    seed: int
    epoch: int
    indices: list[int]


class Collated(NamedTuple):
    """What it gives.

    Attributes:
        indices: the samples that were collated, int64 of shape (samples,).
        data: what the collate function made of them.
    """

    indices: Indices
    data: Any


class Fetch:
    """A data set seen as one that is indexed by whole requests; this is what travels to the workers."""

    def __init__(self, dataset: MapDataset | KeyedDataset, collate: Collate | None) -> None:
        self._dataset: Any = dataset
        self._keyed = dataset if isinstance(dataset, KeyedDataset) else None  # found out once: it takes microseconds
        self._collate: Collate = default_collate if collate is None else collate
        self._template: Any = None

    def __getitem__(self, request: Request) -> Collated:
        """Read and collate the samples of a request."""
        if not request.indices:
            return Collated(np.empty(0, dtype=np.int64), self._nothing(request))
        indices, samples = [], []
        for index in request.indices:
            samples.append(self._read(request, index))
            indices.append(index)
        return Collated(np.array(indices, dtype=np.int64), self._collate(samples))

    def _nothing(self, request: Request) -> Any:
        if self._template is None:
            self._template = cut(self._collate([self._read(request, 0)]), 1, range(0))
        return self._template

    def _read(self, request: Request, index: int) -> Any:
        try:
            if self._keyed is not None:
                return self._keyed.sample(SampleKey(request.seed, request.epoch, index))
            return self._dataset[index]
        except Exception as error:
            error.add_note(f"while reading sample {index} in epoch {request.epoch}")
            raise


class _Feed:
    """The requests of the current run, and the shares whose answers are still to come."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._shares: Iterator[Share] = iter(())
        self.pending: deque[Share] = deque()

    def load(self, shares: Iterable[Share]) -> None:
        self._shares = iter(shares)
        self.pending = deque()

    def __iter__(self) -> Iterator[Request]:
        for share in self._shares:
            self.pending.append(share)
            yield Request(self._seed, share.epoch, share.indices.tolist())


class Pipeline:
    """Reads and collates samples; its workers, once started, serve all its runs.

    Args:
        dataset: with random access; a `KeyedDataset` is given seed and epoch.
        seed: of the samples' own randomness.
        collate: makes one batch of a list of samples; torch's `default_collate` if None.
        num_workers: processes; 0 reads in this one.
        prefetch: batches that each worker holds ready.
        pin_memory: copy batches to pinned memory for the GPU.
    """

    def __init__(
        self,
        dataset: MapDataset | KeyedDataset,
        *,
        seed: int,
        collate: Collate | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> None:
        self._feed = _Feed(seed)
        self._current: Generator[tuple[Share, Collated], None, None] | None = None
        self._workers = Workers(num_workers=num_workers, prefetch=prefetch)
        self._source: DataLoader[Any] | None = DataLoader(
            Fetch(dataset, collate),  # type: ignore[arg-type]  # anything with __getitem__ will do
            sampler=self._feed,
            batch_size=None,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            **self._workers.options(),
        )

    def run(self, shares: Iterable[Share]) -> Iterator[tuple[Share, Collated]]:
        """The collated samples of each share, in order; a run that was begun before is given up.

        Raises:
            RuntimeError: the pipeline is closed.
        """
        self._give_up()
        self._current = self._run(shares)
        return self._current

    def _run(self, shares: Iterable[Share]) -> Generator[tuple[Share, Collated], None, None]:
        if self._source is None:
            raise RuntimeError("the loader is closed")
        self._feed.load(shares)
        for collated in self._workers.start(self._source):
            yield self._feed.pending.popleft(), collated

    def _give_up(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None

    def close(self) -> None:
        """End the workers."""
        self._give_up()
        self._workers.end()
        self._source = None
