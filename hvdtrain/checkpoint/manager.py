"""When checkpoints are made, and who does what: root alone touches files, and all ranks learn what became of it.

After `save` returns, the state may change: root holds a copy of it and writes in the background. One save is in flight;
the next waits for it, and tells every rank if it failed. After a restore, every rank holds what root read, proven so.

    with CheckpointManager(run_dir / "checkpoints", collectives=runtime.collectives, run_id="b6", config=config,
                           every_steps=100, keep=3, on_error="warn") as manager:
        restored = manager.restore_latest()                  # Restored(step, state, manifest), or None
        for step in ...:
            if manager.due(step):
                manager.save(step, {"model": model.state_dict(), "rng": PerRank(rng_state())}, {"loss": 0.1})
    # the last save has ended here, well or with an exception on every rank
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from hvdtrain.checkpoint.delivery import Restored, deliver
from hvdtrain.checkpoint.format import Checkpoint, Snapshot
from hvdtrain.checkpoint.snapshot import HostCopier
from hvdtrain.checkpoint.store import Best, Store
from hvdtrain.checkpoint.writer import Outcome, Writer
from hvdtrain.collectives import Collectives, Json
from hvdtrain.errors import CheckpointError, StepMismatch
from hvdtrain.statetree import Flat, Tree, flatten, from_json, to_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PerRank:
    """A small value that each rank has of its own, such as its random state; saved for all of them."""

    value: Tree


class CheckpointManager:
    """Saves and restores for all ranks together; see the module's synopsis. Making one is local and touches no file.

    Args:
        directory: where the checkpoints of this run are.
        collectives: how ranks agree.
        run_id: names the run in each manifest.
        config: the resolved configuration, as JSON.
        every_steps: `due` after so many steps; None for never.
        every_epochs: `due` after so many epochs; None for never.
        keep: how many of the newest to keep; None for all.
        keep_every: keep each whose step is a multiple of this as well.
        best: keep the best by a metric as well.
        asynchronous: write in the background. Otherwise `save` returns when the disk has it.
        on_error: what a full disk or an I/O error does: `warn` and go on, or `fail` on every rank. A fault of the
            program itself always fails.
        clock: seconds that only move forward.
        publish: what writes a snapshot; the store's own unless a test says otherwise.
    """

    def __init__(
        self,
        directory: Path,
        *,
        collectives: Collectives,
        run_id: str,
        config: Mapping[str, Json] | None = None,
        every_steps: int | None = None,
        every_epochs: int | None = None,
        keep: int | None = 3,
        keep_every: int | None = None,
        best: Best | None = None,
        asynchronous: bool = True,
        on_error: Literal["warn", "fail"] = "warn",
        clock: Callable[[], float] = time.monotonic,
        publish: Callable[[Snapshot], object] | None = None,
    ) -> None:
        self._collectives, self._run_id, self._on_error, self._clock = collectives, run_id, on_error, clock
        self._config: dict[str, Json] = json.loads(json.dumps(dict(config or {})))
        self._every_steps, self._every_epochs = every_steps, every_epochs
        self._store = Store(directory, keep=keep, keep_every=keep_every, best=best)
        self._recovered = False
        self._copier, self._asynchronous = HostCopier(threads=torch.get_num_threads()), asynchronous
        self._publish = publish or self._store.publish
        self._writer = Writer(self._recover_and_publish, clock=clock, asynchronous=asynchronous)
        self.last_save_s: float | None = None  # how long the last save took that this rank has heard of
        self.last_blocked_s: float | None = None  # how long the last `save` kept the steps waiting

    # ---- when

    def due(self, step: int, *, epochs_done: int | None = None) -> bool:
        """Whether to save now: after `step` updates and, at the end of an epoch, after so many epochs."""
        by_step = bool(self._every_steps) and step > 0 and step % (self._every_steps or 1) == 0
        return by_step or bool(epochs_done and self._every_epochs and epochs_done % self._every_epochs == 0)

    @property
    def failed(self) -> bool:
        """Whether a save has failed of which the other ranks do not know yet; only root can tell.

        For a decision that rides with the gradients: where it is set, all ranks call `poll`.
        """
        return self._writer.failed

    # ---- saving

    def save(self, step: int, state: Mapping[str, Tree | PerRank], metrics: Mapping[str, float] | None = None) -> None:
        """Collective: save the state at a step. Root's state counts, and every rank's own `PerRank` entries.

        Returns when root has a copy (asynchronous) or the disk has it. Waits first for the save before.

        Raises:
            CheckpointError: the state is not plain on some rank, or an earlier save (when not asynchronous: this one)
                failed and `on_error` is `fail`. On every rank.
            StepMismatch: the ranks are at different steps. On every rank.
        """
        began = self._clock()
        outcome = self._writer.wait()
        shared, mine, fault = self._take_apart(state)
        rows = self._collectives.gather_json(
            {"step": step, "fault": fault, "mine": mine, "outcome": asdict(outcome) if outcome else None},
            "hvdtrain.checkpoint.save",
        )
        _check_rows(step, rows)
        self._settle(rows[0]["outcome"])
        if self._collectives.topology.is_root:
            own = {name: flatten([from_json(row["mine"][name]) for row in rows]) for name in mine}
            self._begin(step, {**shared, **own}, sorted(own), metrics or {})
        if not self._asynchronous:
            self._settle_now(wait=True)
        self.last_blocked_s = self._clock() - began

    def _take_apart(self, state: Mapping[str, Tree | PerRank]) -> tuple[dict[str, Flat], dict[str, Json], str]:
        """Root's shared entries, this rank's own ones, and what is wrong with them."""
        shared: dict[str, Flat] = {}
        mine: dict[str, Json] = {}
        for name, value in state.items():
            try:
                if isinstance(value, PerRank):
                    mine[name] = to_json(value.value)
                elif self._collectives.topology.is_root:
                    shared[name] = flatten(value)
            except TypeError as error:
                return {}, {}, f"{name}.{error}"
        return shared, mine, ""

    def _begin(self, step: int, entries: dict[str, Flat], per_rank: list[str], metrics: Mapping[str, float]) -> None:
        snapshot = Snapshot(
            step=step,
            run_id=self._run_id,
            size=self._collectives.topology.size,
            entries=self._copier.copy(entries) if self._asynchronous else entries,
            per_rank=per_rank,
            config=self._config,
            metrics={name: float(value) for name, value in metrics.items()},
        )
        self._writer.start(snapshot)

    def _recover(self) -> None:
        if not self._recovered:
            self._store.recover()
            self._recovered = True

    def _recover_and_publish(self, snapshot: Snapshot) -> None:
        self._recover()
        self._publish(snapshot)

    def poll(self) -> None:
        """Collective: tell every rank what became of a save that has ended meanwhile; does not wait for one in flight.

        Raises:
            CheckpointError: it failed, and `on_error` is `fail`. On every rank.
        """
        self._settle_now(wait=False)

    def close(self) -> None:
        """Collective: wait for the save in flight and tell every rank what became of it.

        Raises:
            CheckpointError: it failed, and `on_error` is `fail`. On every rank.
        """
        self._settle_now(wait=True)

    def abandon(self) -> None:
        """Wait for the save in flight without telling anybody: for a rank that leaves by an exception."""
        outcome = self._writer.wait()
        if outcome and outcome.fault:
            _log.error("no checkpoint at step %d: %s", outcome.step, outcome.fault)

    def _settle_now(self, *, wait: bool) -> None:
        outcome = self._writer.wait() if wait else self._writer.poll()
        self._settle(self._collectives.broadcast_json(asdict(outcome) if outcome else None, "hvdtrain.checkpoint"))

    def _settle(self, fields: dict[str, Any] | None) -> None:
        """Act on root's outcome, the same on every rank."""
        if fields is None:
            return
        outcome = Outcome(**fields)
        if not outcome.fault:
            self.last_save_s = outcome.save_s
        elif self._on_error == "fail" or not outcome.tolerable:
            raise CheckpointError(
                f"save a checkpoint at step {outcome.step} in {self._store.directory}",
                found=outcome.fault,
                remedy="make room or repair the disk; earlier checkpoints are untouched, so --resume auto goes on",
                agreed=True,
            )
        else:
            _log.warning("no checkpoint at step %d, training goes on without it: %s", outcome.step, outcome.fault)

    # ---- restoring

    def restore_latest(self) -> Restored | None:
        """Collective: the newest valid checkpoint on every rank, or None when there is none.

        Raises:
            CheckpointError: there are checkpoints but none is valid.
            ReplicaMismatch: what arrived differs between ranks.
        """
        return self._restore(self._store.newest_valid)

    def restore(self, step: int) -> Restored:
        """Collective: the checkpoint of one step on every rank.

        Raises:
            InvalidCheckpoint: it is missing or not valid.
            ReplicaMismatch: what arrived differs between ranks.
        """
        restored = self._restore(lambda: self._store.read(step))
        assert restored is not None, "read returns or raises"
        return restored

    def _restore(self, find: Callable[[], Checkpoint | None]) -> Restored | None:
        self.close()

        def look() -> Checkpoint | None:
            self._recover()
            return find()

        return deliver(look, self._collectives)

    # ---- as a context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


def _check_rows(step: int, rows: list[dict[str, Any]]) -> None:
    faults = [f"rank {rank}: {row['fault']}" for rank, row in enumerate(rows) if row["fault"]]
    if faults:
        raise CheckpointError(
            f"save the state at step {step}",
            found="; ".join(faults),
            remedy="states hold tensors, None, bool, int, float, str, and lists, tuples and dicts of them",
            agreed=True,
        )
    steps = [row["step"] for row in rows]
    if len(set(steps)) > 1:
        raise StepMismatch("save one state on all ranks", found=f"ranks are at steps {steps}", agreed=True)
    names = [sorted(row["mine"]) for row in rows]
    if any(other != names[0] for other in names):
        found = f"ranks have different per-rank entries: {names}"
        raise CheckpointError(f"save the state at step {step}", found=found, agreed=True)
