"""What is done between steps: each callback is told of a moment, on every rank, and never calls back into the loop.

A callback that communicates does so on all ranks, because all are told alike. Its state, if it has any, is in the
checkpoint under the name of its class.

    class Announce(Callback):
        def epoch_ended(self, trainer):
            trainer.run.log.info("epoch %d is over", trainer.epoch)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from hvdtrain.checkpoint.manager import CheckpointManager
from hvdtrain.data.batch import Batch
from hvdtrain.metrics import Mean, Means, compute, include
from hvdtrain.metrics.writers import Writer
from hvdtrain.runtime import Run
from hvdtrain.sync.contract import GradientSync, StepResult
from hvdtrain.train.schedule import Schedule
from hvdtrain.train.stragglers import Times, add, slowest


class Training(Protocol):
    """What a callback sees of the trainer that tells it."""

    run: Run
    model: nn.Module
    sync: GradientSync
    schedule: Schedule
    step: int
    samples_seen: int
    batch: Batch | None

    @property
    def epoch(self) -> int:
        """Whole epochs made."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since this rank was started."""

    @property
    def learning_rate(self) -> float:
        """Of the last update."""

    def state_dict(self) -> dict[str, Any]:
        """The contents of a checkpoint."""


class Callback:
    """Does nothing at every moment; override what you need."""

    def fit_started(self, trainer: Training) -> None:
        """Before the first step of this process, after a resume."""

    def step_ended(self, trainer: Training, result: StepResult) -> None:
        """After a committed step."""

    def epoch_ended(self, trainer: Training) -> None:
        """After the last step of an epoch and its evaluation; `trainer.epoch` epochs are complete."""

    def evaluated(self, trainer: Training, metrics: dict[str, float]) -> None:
        """After an evaluation; `metrics` are the same on every rank."""

    def fit_ended(self, trainer: Training) -> None:
        """After the last step and evaluation, or when a stop was agreed; callbacks are told in reverse order."""

    def state_dict(self) -> dict[str, Any]:
        """The state to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


class Recorder(Callback):
    """Gives records to writers: the mean over the last steps, and every evaluation.

    Args:
        writers: on root; empty on the others.
        every_steps: steps in a record.
        clock: seconds, for rates.
    """

    def __init__(
        self, writers: Sequence[Writer], *, every_steps: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writers, self._every_steps, self._clock = writers, every_steps, clock
        self._window: Means = {}
        self._times: Times | None = None  # of the steps in the window; None before the first step, which is no measure
        self._since = clock()

    def step_ended(self, trainer: Training, result: StepResult) -> None:
        """Add the step to the window, and write the window when it is full."""
        if not result.nonfinite:
            self._window = include(self._window, {"loss": result.loss, **result.metrics}, result.samples)
        self._times = () if self._times is None else add(self._times, result.times)
        if trainer.step % self._every_steps == 0 and self._window:
            self._write(trainer)

    def _write(self, trainer: Training) -> None:
        now, samples = self._clock(), self._window["loss"].count
        rates = {"lr": trainer.learning_rate, "samples_per_s": samples / max(now - self._since, 1e-9)}
        found = slowest(self._times or (), hosts=trainer.run.hosts)
        self._emit(trainer, "train", compute(self._window) | rates | (found.fields() if found else {}))
        if found and self._writers:
            trainer.run.log.info("%s", found.sentence())
        self._window, self._times, self._since = {}, (), now

    def evaluated(self, trainer: Training, metrics: dict[str, float]) -> None:
        """Write the evaluation; its time does not count for the training's rate."""
        self._emit(trainer, "eval", metrics)
        self._since = self._clock()

    def _emit(self, trainer: Training, split: str, values: Mapping[str, float | str]) -> None:
        position = {"step": trainer.step, "epoch": trainer.epoch, "split": split, "time_s": trainer.elapsed_s}
        for write in self._writers:
            write({**position, **values})

    def state_dict(self) -> dict[str, Any]:
        """The open window, so that records do not depend on where a run was interrupted."""
        return {"window": {name: [mean.total, mean.count] for name, mean in self._window.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with an open window."""
        self._window = {name: Mean(*pair) for name, pair in state["window"].items()}


class Checkpointer(Callback):
    """Saves the trainer at the configured steps or epochs, and always at the end.

    Args:
        manager: decides when, and writes.
        before_save: what each rank must have put on disk before a checkpoint that follows from it.
    """

    def __init__(self, manager: CheckpointManager, *, before_save: Callable[[], None] = lambda: None) -> None:
        self._manager, self._before_save = manager, before_save
        self._saved_step: int | None = None
        self._metrics: dict[str, float] | None = None

    def step_ended(self, trainer: Training, result: StepResult) -> None:
        """Save when the step's number is a multiple of `checkpoint.every_steps`."""
        if self._manager.due(trainer.step):
            self._save(trainer)

    def evaluated(self, trainer: Training, metrics: dict[str, float]) -> None:
        """Remember by what the next checkpoint is judged."""
        self._metrics = metrics

    def epoch_ended(self, trainer: Training) -> None:
        """Save when the epoch's number is a multiple of `checkpoint.every_epochs`."""
        if self._manager.due(trainer.step, epochs_done=trainer.epoch):
            self._save(trainer)

    def fit_ended(self, trainer: Training) -> None:
        """Save the end, and wait until it is on disk."""
        self._save(trainer)
        with trainer.run.phases.during("save"):
            self._manager.close()

    def _save(self, trainer: Training) -> None:
        if self._saved_step != trainer.step:
            with trainer.run.phases.during("save"), trainer.sync.settled():
                self._before_save()
                self._manager.save(trainer.step, trainer.state_dict(), metrics=self._metrics)
            self._saved_step = trainer.step
