"""The run directory: one place for a run's configuration, metrics, checkpoints, logs and summary.

Root alone creates and writes what is shared, through `on_root`, so a fault of the file system reaches every rank; each
rank only appends to its own log.

    directory = open_run_directory(run, Path("runs/digits"))
    directory.write_json("summary.json", {"size": 2})                 # Root only, beside and renamed
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hvdtrain.errors import RunDirectoryError
from hvdtrain.runtime import Run


@dataclass(frozen=True)
class RunDirectory:
    """Where the parts of a run are."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """One directory for each checkpoint."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object per record."""
        return self.path / "metrics.jsonl"

    @property
    def logs(self) -> Path:
        """One log per rank."""
        return self.path / "logs"

    def write_text(self, name: str, text: str) -> None:
        """Root only: publish a file beside its old version, then by rename, readable by its owner alone."""
        beside = self.path / f".{name}.partial"
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path / name)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Root only: see `write_text`."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Root only: the whole resolved configuration, as `--config` reads it again."""
        self.write_text("config.yaml", yaml.safe_dump(dict(settings), sort_keys=False))

    def saved_config(self) -> dict[str, Any] | None:
        """Root only: what `write_config` wrote, or None."""
        path = self.path / "config.yaml"
        if not path.exists():
            return None
        saved = yaml.safe_load(path.read_text())
        if not isinstance(saved, dict):
            raise RunDirectoryError("continue the run", found=f"{path} is not a configuration", remedy="--resume never")
        return saved


def open_run_directory(run: Run, path: Path) -> RunDirectory:
    """Collective: create the directory where it is missing."""
    directory = RunDirectory(path.absolute())
    run.collectives.on_root(lambda: _create(directory))
    return directory


def _create(directory: RunDirectory) -> None:
    try:
        for part in (directory.path, directory.checkpoints, directory.logs):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(
            f"keep the run in {directory.path}", found=str(error), remedy="another --run-dir"
        ) from error
