"""What a call of `hvdtrain run` asks for, and the configuration that follows from it and from what was saved.

Later sources win: defaults, the recipe's, on resume the saved configuration, and what was given now. What would make
the saved run another one is refused, unless it is named.

    request = Request(run_dir=Path("runs/digits"), resume="auto", chosen={"train.steps": 80})
    config = resolve(run, source, request, directory)
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hvdtrain.config import IDENTITY, Config, differences, flatten, ignored, overlay, unflatten
from hvdtrain.errors import ConfigError, RunDirectoryError
from hvdtrain.profile import Prediction, Profile
from hvdtrain.recipes.recipe import RecipeSource
from hvdtrain.runtime import Run
from hvdtrain.train.rundirectory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one call of `hvdtrain run` asks for, beside the recipe.

    Attributes:
        chosen: settings given by file or command line, by dotted name.
        run_dir: where the run is kept.
        resume: `never`, `auto` (the newest valid checkpoint, if any), or a step.
        init_from: a file of initial weights, or None.
        allow_change: settings of the run's identity that may differ from the saved ones on resume.
        profile: whose settings are in `chosen` already, and whose prediction is compared with the run.
    """

    run_dir: Path
    chosen: Mapping[str, Any] = field(default_factory=dict)
    resume: Literal["never", "auto"] | int = "never"
    init_from: Path | None = None
    allow_change: frozenset[str] = frozenset()
    profile: Profile | None = None

    def prediction(self, size: int) -> Prediction | None:
        """What a step is to take on so many ranks, if the profile says so."""
        return self.profile.prediction(size) if self.profile else None


def resolve(run: Run, source: RecipeSource, request: Request, directory: RunDirectory) -> Config:
    """Collective: the configuration of this run, which on resume starts from the saved one; saved in the directory."""
    base = overlay(Config(), source.defaults)
    saved = run.collectives.on_root(lambda: _saved(directory, request, source.name))
    known = flatten(base)
    saved_settings = {
        f"{section}.{name}": value
        for section, fields in (saved or {}).items()
        if isinstance(fields, dict)
        for name, value in fields.items()
        if f"{section}.{name}" in known
    }
    config = overlay(overlay(base, saved_settings), request.chosen)
    changed = differences(saved_settings, flatten(config))
    _refuse_another_run(changed, request.allow_change)
    for name, (old, new) in changed.items():
        run.log.info("%s was %s and is %s from here on", name, old, new)
    for sentence in ignored(config, request.chosen):
        if run.topology.is_root:
            run.log.warning("%s", sentence)
    record = {"recipe": source.name, "run_id": (saved or {}).get("run_id") or secrets.token_hex(8)}
    run.collectives.on_root(lambda: directory.write_config({**record, **unflatten(flatten(config))}))
    return config


def _saved(directory: RunDirectory, request: Request, recipe: str) -> dict[str, Any] | None:
    """Root only: the saved configuration to continue from, None for a new run."""
    holds = any(path.name.startswith("step-") for path in directory.checkpoints.iterdir())
    if request.resume == "never":
        if holds:
            raise RunDirectoryError(
                f"begin a new run in {directory.path}",
                found="it already holds checkpoints of a run",
                remedy="--resume auto   to continue that run, or another --run-dir",
            )
        return None
    saved = directory.saved_config() if holds else None
    if saved and saved.get("recipe") != recipe:
        raise RunDirectoryError(
            f"continue the recipe {recipe} in {directory.path}",
            found=f"the run there is of the recipe {saved.get('recipe')}",
            remedy=f"hvdtrain run {saved.get('recipe')} --resume auto, or another --run-dir",
        )
    return saved


def _refuse_another_run(changed: Mapping[str, tuple[Any, Any]], allowed: frozenset[str]) -> None:
    refused = [name for name in IDENTITY if name in changed and name not in allowed]
    if refused:
        raise ConfigError(
            "continue the saved run with other settings",
            found="; ".join(f"{name} was {changed[name][0]} and would be {changed[name][1]}" for name in refused)
            + ": this would make it another run",
            remedy="leave them, or: " + " ".join(f"--allow-change {name}" for name in refused),
            agreed=True,
        )
