"""Keeping the ledger of a run: what each committed step used, on every rank, for `hvdtrain audit`.

An attempt begins when fitting starts and ends in order only after the last checkpoint; what a rank noted is on disk
before the manifest of a checkpoint that follows from it.

    keeper = LedgerKeeper(run_dir, Attempt(size=run.topology.size, resumed_from=None, n=1437, seed=0, ...))
    callbacks = (keeper, Checkpointer(manager, before_save=keeper.flush))
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hvdtrain.data.ledger import Attempt, Ledger, begin_attempt, end_attempt
from hvdtrain.sync.contract import StepResult
from hvdtrain.train.callbacks import Callback, Training


class LedgerKeeper(Callback):
    """Appends the batch of each committed step to this rank's file.

    Args:
        run_dir: the run directory.
        attempt: what this start of the run is; its number and the step it goes on from are filled in.
    """

    def __init__(self, run_dir: Path, attempt: Attempt) -> None:
        self._run_dir, self._attempt = run_dir, attempt
        self._ledger: Ledger | None = None

    def fit_started(self, trainer: Training) -> None:
        """Collective: root notes the attempt, and every rank opens its file."""
        attempt = replace(self._attempt, resumed_from=trainer.step or None)
        number = trainer.run.collectives.on_root(lambda: begin_attempt(self._run_dir, attempt))
        self._attempt = replace(attempt, attempt=number)
        self._ledger = Ledger(self._run_dir, rank=trainer.run.topology.rank, attempt=number)

    def step_ended(self, trainer: Training, result: StepResult) -> None:
        """Note the samples that were collated for the step."""
        if self._ledger is not None and trainer.batch is not None:
            self._ledger.append(trainer.step, trainer.batch)

    def flush(self) -> None:
        """Put on disk what was noted."""
        if self._ledger is not None:
            self._ledger.flush()

    def fit_ended(self, trainer: Training) -> None:
        """Collective: close the files, and then note that the attempt ended in order."""
        if self._ledger is not None:
            self._ledger.close()
        trainer.run.collectives.barrier()
        run_dir, number, step = self._run_dir, self._attempt.attempt, trainer.step
        trainer.run.collectives.on_root(lambda: end_attempt(run_dir, number, step=step))
