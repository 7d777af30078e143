"""A real `Trainer` over one batch that is always there: with the signal, metrics, a recorder and a watchdog.

It gives the time of each step as a user has it, everything between two steps included.

    with trainer_over(run, built, steps=30, folder=folder) as (trainer, stopwatch):
        trainer.fit()
    stopwatch.step_s                                       # 29 numbers
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from hvdtrain.config import ScheduleConfig, SentinelConfig, SyncConfig, WatchdogConfig
from hvdtrain.data.batch import Batch
from hvdtrain.data.loader import Loader
from hvdtrain.diagnostics.bench.models import Built
from hvdtrain.runtime import Run
from hvdtrain.sync import prepare
from hvdtrain.sync.contract import StepResult
from hvdtrain.train.callbacks import Callback, Recorder
from hvdtrain.train.schedule import Schedule
from hvdtrain.train.trainer import Budget, Output, Trainer
from hvdtrain.watchdog import watching

LEARNING_RATE, MOMENTUM = 1e-4, 0.9


@dataclass
class Position:
    """The position in an epoch that never ends."""

    epoch: int = 0
    consumed: int = 1
    finished: bool = False


class Prefetched:
    """Instead of a loader: the same batch for ever, ready at once.

    Args:
        built: its data.
        size: number of ranks.
    """

    def __init__(self, built: Built, size: int) -> None:
        self.sampler = Position()
        self._built, self._size = built, size

    def __iter__(self) -> Iterator[Batch]:
        """The batch, again and again."""
        samples = self._built.samples
        while True:
            yield Batch(
                data=self._built.inputs,
                samples=samples,
                global_samples=samples * self._size,
                epoch=0,
                start=0,
                stop=samples * self._size,
                indices=None,
            )


@dataclass
class Stopwatch(Callback):
    """Notes when each step has ended.

    Attributes:
        ended_s: on the clock `time.perf_counter`.
    """

    ended_s: list[float] = field(default_factory=list)

    def step_ended(self, trainer: Any, result: StepResult) -> None:
        """One more."""
        self.ended_s.append(time.perf_counter())

    @property
    def step_s(self) -> list[float]:
        """From the end of each step to that of the next."""
        return [after - before for before, after in zip(self.ended_s, self.ended_s[1:], strict=False)]


def optimizer_over(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all sides."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def sync_config(strategy: str) -> SyncConfig:
    """A configuration with one choice made and everything else left as it is by default."""
    return SyncConfig(strategy=cast(Any, strategy))


@contextmanager
def trainer_over(
    run: Run,
    built: Built,
    *,
    steps: int,
    folder: Path,
    strategy: str = "allreduce",
    sentinel_steps: int | None = None,
    name: str = "model",
) -> Iterator[tuple[Trainer, Stopwatch]]:
    """Collective: a trainer that makes `steps` steps, watched; its exchange is closed when the context ends."""
    optimizer = optimizer_over(built.model)
    sync = prepare(
        run,
        built.model,
        optimizer,
        config=sync_config(strategy),
        sentinel=SentinelConfig(every_steps=sentinel_steps),
        name=name,
    )
    stopwatch = Stopwatch()
    trainer = Trainer(
        run=run,
        model=built.model,
        loss=lambda model, data: Output(loss=built.loss(model)),
        sync=sync,
        optimizer=optimizer,
        schedule=Schedule(ScheduleConfig(name="constant"), total_steps=steps, peaks=[LEARNING_RATE]),
        batches=cast(Loader, Prefetched(built, run.topology.size)),
        budget=Budget(steps=steps, epochs=1),
        callbacks=(Recorder((), every_steps=10), stopwatch),
    )
    with watching(run, folder, WatchdogConfig()):
        yield trainer, stopwatch
    sync.close()
