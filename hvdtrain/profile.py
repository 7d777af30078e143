"""A profile: what was found to suit one model, its hosts and ranks, in a file that `run` and `launch` take.

It lies between the defaults and the command line: what was typed, or put into `--config`, always wins over it. It can
hold settings of the exchange, what the launcher is told, and predictions; nothing else, so that a profile from
somewhere else changes neither the model nor what is executed.

    launch = Launching(variables={"HOROVOD_CYCLE_TIME": "0.5"})
    profile = Profile(settings={"sync.bucket_bytes": 2097152}, launch=launch)
    write(profile, Path("digits.profile"))
    read(Path("digits.profile")) == profile                # True; ConfigError for what is none
    read(Path("digits.profile")).prediction(size=4)        # None, or ms per step and their interval
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hvdtrain.errors import ConfigError

VERSION = 1
VARIABLES = ("HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD")  # milliseconds; bytes
BINDINGS = ("none", "core")
PROFILE_VARIABLE = "HVDTRAIN_PROFILE"  # tells ranks which profile their launcher has followed
SECTION = "sync."  # the only section of the configuration that a profile may change


@dataclass(frozen=True, kw_only=True)
class Launching:
    """What the launcher is told instead of its own rules.

    Attributes:
        binding: `none`, or `core` for one core to each rank; None leaves it to the launcher.
        yielding: whether a waiting MPI gives its core away; None leaves it to the launcher.
        variables: of Horovod, for every rank, among `VARIABLES`.
    """

    binding: str | None = None
    yielding: bool | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step was foretold to take.

    Attributes:
        ms_per_step: median.
        low: lower end of the interval.
        high: upper end.
    """

    ms_per_step: float
    low: float
    high: float

    def against(self, measured_ms: float) -> str:
        """Prediction and reality in one sentence."""
        off = round(100.0 * (self.ms_per_step / measured_ms - 1.0))
        inside = "within" if self.low <= measured_ms <= self.high else "outside"
        return (
            f"{measured_ms:.2f} ms per step measured, {self.ms_per_step:.2f} predicted, which is {off:+d} % off"
            f" and {inside} the interval of {self.low:.2f} to {self.high:.2f}"
        )


@dataclass(frozen=True, kw_only=True)
class Profile:
    """See the module.

    Attributes:
        settings: of the exchange, by dotted name.
        launch: what the launcher is told.
        predictions: number of ranks -> what a step is to take.
        origin: what it was found for and by, for people; nothing reads it.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    launch: Launching = Launching()
    predictions: Mapping[int, Prediction] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    def prediction(self, size: int) -> Prediction | None:
        """For so many ranks, if there is one."""
        return self.predictions.get(size)

    def with_predictions(self, predictions: Mapping[int, Prediction]) -> Profile:
        """The same with these predictions."""
        return replace(self, predictions=dict(predictions))


def missing_variables(profile: Profile, env: Mapping[str, str]) -> dict[str, str]:
    """The profile's variables that `env` does not have: what was set by hand wins."""
    return {name: value for name, value in profile.launch.variables.items() if name not in env}


def unfollowed(profile: Profile, env: Mapping[str, str]) -> list[str]:
    """One sentence for each thing that only `hvdtrain launch` could have done, where it has not."""
    if PROFILE_VARIABLE in env:
        return []
    asked = {"binding": profile.launch.binding, "yielding": profile.launch.yielding}
    return [
        f"launch.{name} of the profile is ignored: it is for `hvdtrain launch --profile`"
        for name, value in asked.items()
        if value is not None
    ]


def write(profile: Profile, file: Path) -> None:
    """Write it as JSON.

    Raises:
        ConfigError: the file cannot be written.
    """
    tree = {"hvdtrain_profile": VERSION, **asdict(profile)}
    tree["predictions"] = {str(size): asdict(one) for size, one in profile.predictions.items()}
    try:
        file.write_text(json.dumps(tree, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"write the profile {file}", found=str(error), remedy="another --out") from error


def read(file: Path) -> Profile:
    """Read what `write` has written.

    Raises:
        ConfigError: with every fault of the file.
    """
    try:
        tree = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise _refused(file, [str(error)]) from error
    if not isinstance(tree, dict) or tree.get("hvdtrain_profile") != VERSION:
        raise _refused(file, [f'it does not say "hvdtrain_profile": {VERSION}'])
    if found := faults(tree):
        raise _refused(file, found)
    launch = tree.get("launch", {})
    return Profile(
        settings=tree.get("settings", {}),
        launch=Launching(**launch),
        predictions={int(size): Prediction(**one) for size, one in tree.get("predictions", {}).items()},
        origin=tree.get("origin", {}),
    )


def _refused(file: Path, found: list[str]) -> ConfigError:
    return ConfigError(f"use the profile {file}", found="; ".join(found), remedy="hvdtrain tune RECIPE --out FILE")


def faults(tree: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing in a profile's tree that does not belong there."""
    parts = {name: tree.get(name, {}) for name in ("settings", "launch", "predictions", "origin")}
    strange = [f"{name} is unknown" for name in tree if name not in parts and name != "hvdtrain_profile"]
    if no_tables := [f"{name} is no table" for name, part in parts.items() if not isinstance(part, dict)]:
        return strange + no_tables
    settings = [
        f"{name} is no setting of the exchange" for name in parts["settings"] if not str(name).startswith(SECTION)
    ]
    predictions = [f"predictions.{size} is none" for size, one in parts["predictions"].items() if not _holds(size, one)]
    return strange + settings + _launch_faults(parts["launch"]) + predictions


def _holds(size: str, one: Any) -> bool:
    """Whether it is a prediction for so many ranks."""
    names = {"ms_per_step", "low", "high"}
    numbers = isinstance(one, dict) and set(one) == names and all(type(value) in (int, float) for value in one.values())
    return size.isascii() and size.isdigit() and numbers and one["ms_per_step"] > 0


def _launch_faults(launch: Mapping[str, Any]) -> list[str]:
    known = ("binding", "yielding", "variables")
    found = [f"launch.{name} is unknown" for name in launch if name not in known]
    if (binding := launch.get("binding")) not in (None, *BINDINGS):
        found.append(f"launch.binding is {binding!r}, neither of {', '.join(BINDINGS)}")
    if (yielding := launch.get("yielding")) not in (None, True, False):
        found.append(f"launch.yielding is {yielding!r}, neither true nor false")
    variables = launch.get("variables", {})
    if not isinstance(variables, dict):
        return [*found, "launch.variables is no table"]
    found += [
        f"launch.variables.{name} is none of {', '.join(VARIABLES)}" for name in variables if name not in VARIABLES
    ]
    wrong = [name for name, value in variables.items() if not _is_number(value)]
    return found + [f"launch.variables.{name} is no number in a string" for name in wrong]


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.replace(".", "", 1).isdigit()
