"""A progress bar for a person who watches; where the output is no terminal, the console's plain lines are enough."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hvdtrain.sync.contract import StepResult
from hvdtrain.train.callbacks import Callback, Training


class ProgressBar(Callback):
    """Root only: steps done of all steps, with the last loss, on standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("step"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None

    def fit_started(self, trainer: Training) -> None:
        """Show the bar where there is a terminal."""
        if self._progress.console.is_terminal:
            total = trainer.schedule.total_steps
            self._task = self._progress.add_task("train", total=total, completed=trainer.step, loss=float("nan"))
            self._progress.start()

    def step_ended(self, trainer: Training, result: StepResult) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=trainer.step, loss=result.loss)

    def fit_ended(self, trainer: Training) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._progress.stop()
