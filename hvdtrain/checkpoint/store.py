"""Many checkpoints in one directory: published atomically, the newest valid one found by looking, the right ones kept.

At every moment, a kill at any system call included, the newest valid checkpoint is whole and is either the last one
published or the one before. Nothing is deleted before its successor has been read back and verified.

    store = Store(run_dir / "checkpoints", keep=2, keep_every=1000, best=Best("eval.accuracy", "max"))
    store.recover()                        # once, by the writer: clear what a killed save left
    store.publish(snapshot)                # checkpoints/step-00000040
    checkpoint = store.newest_valid()      # or None when there is no checkpoint at all

*Root only:* every method here touches the file system; no other rank may call one. Hidden names are work in progress:
`.staging-*` is being written, `.replaced-*` makes room for the same step, `.deleted-*` is going away. What is named
`superseded-*` is of a step beyond one that was resumed from: out of the run, and left for the user to delete.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvdtrain.checkpoint import format as formats
from hvdtrain.checkpoint.format import Checkpoint, Snapshot, fsync_directory
from hvdtrain.checkpoint.manifest import Manifest
from hvdtrain.errors import CheckpointError, InvalidCheckpoint

_STEP = re.compile(r"step-(\d{8,18})")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Best:
    """Which metric of a checkpoint makes it worth keeping, and whether a larger (`max`) or smaller (`min`) one wins."""

    metric: str
    mode: Literal["min", "max"] = "min"


def kept(
    manifests: Mapping[int, Manifest], *, keep: int | None, keep_every: int | None = None, best: Best | None = None
) -> set[int]:
    """The steps that retention keeps among those of `manifests`: the last `keep`, every Nth, and the best one.

    Args:
        manifests: step -> manifest, of valid checkpoints.
        keep: how many of the newest; None for all.
        keep_every: also those whose step is a multiple of this.
        best: also the one with the best value of this metric; the newest among equals.
    """
    steps = sorted(manifests)
    chosen = set(steps if keep is None else steps[-keep:])
    if keep_every:
        chosen |= {step for step in steps if step % keep_every == 0}
    if best:
        sign = 1 if best.mode == "max" else -1
        values = {step: manifests[step].metrics.get(best.metric) for step in steps}
        ranked = [(sign * value, step) for step, value in values.items() if value is not None]
        chosen |= {max(ranked)[1]} if ranked else set()
    return chosen


class Store:
    """The checkpoints of one run; see the module's synopsis.

    Args:
        directory: where they are; made when the first one is published.
        keep: how many of the newest to keep; at least one, None for all.
        keep_every: keep each whose step is a multiple of this as well.
        best: keep the best by a metric as well.

    Raises:
        CheckpointError: `keep` or `keep_every` is less than one.
    """

    def __init__(
        self, directory: Path, *, keep: int | None = 3, keep_every: int | None = None, best: Best | None = None
    ) -> None:
        for name, value in (("keep", keep), ("keep_every", keep_every)):
            if value is not None and value < 1:
                raise CheckpointError(f"checkpoints with {name}={value}", found="at least 1 is needed, or null")
        self.directory = directory
        self._keep, self._keep_every, self._best = keep, keep_every, best

    def path(self, step: int) -> Path:
        """Root only: where the checkpoint of a step is, or would be."""
        return self.directory / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Root only: the steps of all published checkpoints, valid or not, in ascending order."""
        if not self.directory.is_dir():
            return []
        found = (_STEP.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(step for match in found if match and self.path(step := int(match[1])).name == match[0])

    def read(self, step: int) -> Checkpoint:
        """Root only: the checkpoint of one step, verified.

        Raises:
            InvalidCheckpoint: it is missing or not valid.
        """
        checkpoint = formats.read(self.path(step))
        self._check_step(step, checkpoint.manifest)
        return checkpoint

    def _check_step(self, step: int, manifest: Manifest) -> None:
        if manifest.step != step:
            raise InvalidCheckpoint(
                f"read the checkpoint {self.path(step)}", found=f"it is that of step {manifest.step}"
            )

    def newest_valid(self) -> Checkpoint | None:
        """Root only: the newest valid checkpoint, each invalid one skipped with a warning; None if there is none.

        Raises:
            CheckpointError: there are checkpoints, and none of them is valid.
        """
        reasons = []
        for step in reversed(self.steps()):
            try:
                return self.read(step)
            except InvalidCheckpoint as error:
                reasons.append(f"step {step}: {error.found}")
                _log.warning("skipping the checkpoint %s: %s", self.path(step), error.found)
        if reasons:
            raise CheckpointError(
                f"resume from the newest checkpoint in {self.directory}",
                found="none of them is valid: " + "; ".join(reasons),
                remedy="restore one from a copy, or start afresh in another --run-dir",
            )
        return None

    def recover(self) -> None:
        """Root only: undo and clear what killed saves left behind. No save may be in progress."""
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.glob(".replaced-step-*")):
            final = self.directory / path.name.removeprefix(".replaced-")
            if not os.path.lexists(final):
                path.rename(final)
                fsync_directory(self.directory)
        for pattern in (".staging-*", ".replaced-*", ".deleted-*"):
            for path in sorted(self.directory.glob(pattern)):
                _remove(path)

    def publish(self, snapshot: Snapshot) -> Path:
        """Root only: write a checkpoint, verify it, give it its name, then let retention delete others.

        What was written is read back while the disk still works on it; the name comes after both.

        Raises:
            OSError: the file system refused or gave back other bytes; nothing that was there before has changed.
            InvalidCheckpoint: the snapshot makes a checkpoint that could not be read, likewise.
        """
        final = self.path(snapshot.step)
        self._make_directory()
        staging = self.directory / f".staging-{final.name}-{secrets.token_hex(4)}"
        try:
            formats.write(staging, snapshot)
            formats.persist(staging, formats.check(staging))
            self._supersede_after(snapshot.step)
            self._rename(staging, final)
        except BaseException:
            _remove(staging)
            raise
        self._retain(snapshot.step)
        return final

    def _make_directory(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(mode=formats.DIRECTORY_MODE, parents=True, exist_ok=True)
            fsync_directory(self.directory.parent)

    def _rename(self, staging: Path, final: Path) -> None:
        replaced = self.directory / f".replaced-{final.name}"
        if os.path.lexists(final):
            _remove(replaced)
            final.rename(replaced)
        try:
            staging.rename(final)
        except OSError:
            if replaced.exists():
                replaced.rename(final)
            raise
        fsync_directory(self.directory)
        _remove(replaced)

    def _supersede_after(self, step: int) -> None:
        for later in [other for other in self.steps() if other > step]:
            target = self.directory / f"superseded-{self.path(later).name}-{secrets.token_hex(4)}"
            self.path(later).rename(target)
            _log.warning("step %d comes after step %d, which is saved now: it is set aside as %s", later, step, target)

    def _retain(self, newest: int) -> None:
        """Delete what retention does not keep; trouble here is a warning, for the save itself has succeeded."""
        try:
            manifests = self._manifests_until(newest)
            chosen = kept(manifests, keep=self._keep, keep_every=self._keep_every, best=self._best)
            for step in manifests.keys() - chosen - {newest}:
                self._delete(self.path(step))
        except OSError as error:
            _log.warning("old checkpoints in %s could not be deleted: %s", self.directory, error)

    def _manifests_until(self, newest: int) -> dict[int, Manifest]:
        """The manifests of all that look valid; damaged ones are not counted, and left where they are."""
        manifests = {}
        for step in self.steps():
            try:
                manifests[step] = formats.peek(self.path(step))
            except InvalidCheckpoint as error:
                _log.warning("not counting the checkpoint %s: %s", self.path(step), error.found)
        return {step: manifest for step, manifest in manifests.items() if step <= newest}

    def _delete(self, path: Path) -> None:
        doomed = self.directory / f".deleted-{path.name}-{secrets.token_hex(4)}"
        path.rename(doomed)  # first out of sight, so that nobody ever sees half of it
        _remove(doomed)


def _remove(path: Path) -> None:
    """Delete a file, a link or a directory; one that is gone already is no fault."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif path.exists():
        shutil.rmtree(path, onerror=_warn_of_remains)


def _warn_of_remains(function: object, path: str, info: tuple[object, BaseException, object]) -> None:
    _log.warning("%s could not be deleted: %s", path, info[1])
