"""`hvdtrain run RECIPE|FILE.py`: one rank of a training; started by `hvdtrain launch`, mpirun, horovodrun or srun.

Everything that can be judged without the other ranks is judged before Horovod is started, and all faults are shown in
one message. Then the recipe is trained, and the exit status says how it ended.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hvdtrain.checks import LaunchFacts, guard
from hvdtrain.cli.settings import check, nearest, read_settings, settings_parser, split_settings, to_yaml
from hvdtrain.config import IDENTITY, Config, flatten, overlay, unflatten
from hvdtrain.errors import EXIT_DONE, EXIT_STOPPED, ConfigError
from hvdtrain.profile import Profile, missing_variables, unfollowed
from hvdtrain.profile import read as read_profile


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line of `hvdtrain run`, read and found possible."""

    recipe: str
    chosen: dict[str, Any]
    run_dir: Path
    resume: Literal["never", "auto"] | int
    init_from: Path | None
    allow_change: frozenset[str]
    print_config: bool
    profile: Profile | None = None


def add_own_options(parser: argparse.ArgumentParser) -> None:
    """The options that are no settings."""
    parser.add_argument(
        "recipe", metavar="RECIPE|FILE.py", help="digits, bytelm, or a file that defines recipe(config)"
    )
    parser.add_argument("--config", metavar="F", type=Path, help="settings from a YAML file; the command line wins")
    parser.add_argument(
        "--profile",
        metavar="F",
        type=Path,
        help="what `hvdtrain tune` or `predict` found; --config and options win",
    )
    parser.add_argument("--run-dir", metavar="D", type=Path, help="where the run is kept (default: runs/NAME)")
    parser.add_argument(
        "--resume", default="never", metavar="auto|never|STEP", help="go on from a checkpoint in the run directory"
    )
    parser.add_argument("--init-from", metavar="FILE", type=Path, help="initial weights: .safetensors, or .pt")
    parser.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="SETTING",
        help="on resume, let this setting differ from the saved one although that makes it another run",
    )
    parser.add_argument("--print_config", action="store_true", help="print the whole configuration as YAML and stop")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError("run a recipe", found=message, remedy="hvdtrain run --help")


def read_command(words: Sequence[str]) -> Command:
    """Read a command line, faults of settings and of options all together.

    Raises:
        ConfigError: with every fault.
    """
    rest, settings = split_settings(words)
    parser = _Parser(prog="hvdtrain run", add_help=False, allow_abbrev=False)
    add_own_options(parser)
    options, unknown = parser.parse_known_args(rest)
    # an unknown option goes with the settings, so that its fault is shown together with theirs
    profile = read_profile(options.profile) if options.profile else None
    tuned = profile.settings if profile else {}
    chosen = read_settings([*settings, *((word, "") for word in unknown)], options.config, tuned=tuned)
    return Command(
        recipe=options.recipe,
        chosen=chosen,
        run_dir=options.run_dir or Path("runs", Path(options.recipe).stem),
        resume=_resume(options.resume),
        init_from=options.init_from,
        allow_change=_changes(options.allow_change),
        print_config=options.print_config,
        profile=profile,
    )


def _resume(text: str) -> Literal["never", "auto"] | int:
    if text == "never":
        return "never"
    if text == "auto":
        return "auto"
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(f"--resume {text}", found="it is neither auto, never nor a step", remedy="--resume auto")


def _changes(names: Sequence[str]) -> frozenset[str]:
    strange = [name for name in names if name not in IDENTITY]
    if strange:
        raise ConfigError(
            f"--allow-change {' '.join(strange)}",
            found="no setting of that name makes it another run" + nearest(strange[0], IDENTITY),
            remedy=f"one of {', '.join(IDENTITY)}",
        )
    return frozenset(names)


def main(words: Sequence[str]) -> int:
    """Run one rank and return its exit status."""
    if not words or {"-h", "--help"} & set(words):
        return _help()
    guard(LaunchFacts(env=dict(os.environ)))
    command = read_command(words)
    # Imported here, after what can be refused without them: torch, Horovod and the recipe take seconds.
    import hvdtrain
    from hvdtrain.recipes import Request, find_recipe, train

    source = find_recipe(command.recipe)
    config = overlay(overlay(Config(), source.defaults), command.chosen)
    check(config)
    if command.print_config:
        print(to_yaml(unflatten(flatten(config))), end="")
        return EXIT_DONE
    request = Request(
        chosen=command.chosen,
        run_dir=command.run_dir,
        resume=command.resume,
        init_from=command.init_from,
        allow_change=command.allow_change,
        profile=command.profile,
    )
    if command.profile:
        os.environ |= missing_variables(command.profile, os.environ)  # Horovod reads them when it starts
    with hvdtrain.init(seed=config.train.seed, deterministic=config.sync.deterministic) as run:
        if run.topology.is_root and command.profile:
            for sentence in unfollowed(command.profile, os.environ):
                run.log.warning("%s", sentence)
        summary = train(run, source, request)
        if run.topology.is_root:
            _report(summary, command.run_dir)
    return EXIT_DONE if summary["stopped_by"] == "completed" else EXIT_STOPPED


def _help() -> int:
    parser = settings_parser()
    add_own_options(parser)
    parser.print_help()
    return EXIT_DONE


def _report(summary: dict[str, Any], run_dir: Path) -> None:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in summary["eval"].items() if name != "count")
    ended = "completed" if summary["stopped_by"] == "completed" else f"stopped by {summary['stopped_by']}"
    print(f"{ended} after {summary['steps']} steps: {metrics}; {run_dir / 'summary.json'}", file=sys.stderr)
