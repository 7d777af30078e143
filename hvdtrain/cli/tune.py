"""`hvdtrain tune RECIPE`: the best settings for this model, these hosts and ranks, in a profile.

hvdtrain tune digits -np 2 --out digits.profile
hvdtrain tune my_recipe.py -np 4 -H n1:2,n2:2 --network 10.1.0.0/16 --train.global_batch_size 256
hvdtrain launch -np 2 --profile digits.profile -- hvdtrain run digits
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.settings import split_settings
from hvdtrain.diagnostics.bench.jobs import cleaned_up
from hvdtrain.diagnostics.bench.table import aligned, number, spread
from hvdtrain.diagnostics.trainings import LEAST_STEPS
from hvdtrain.diagnostics.tune.search import Found, Task, tune
from hvdtrain.errors import EXIT_DONE, UsageError
from hvdtrain.launch import hostfile
from hvdtrain.launch.spec import LaunchSpec
from hvdtrain.profile import write


def build_parser() -> argparse.ArgumentParser:
    """The options; settings of the recipe, `--section.field value`, are taken out before."""
    parser = argparse.ArgumentParser(
        prog="hvdtrain tune",
        description="find the settings that are fastest for a model, its hosts and ranks, and prove that they are",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe", nargs="+", metavar="RECIPE|FILE.py", help="and its settings, with or without `hvdtrain run` before it"
    )
    parser.add_argument("-np", type=int, metavar="N", help="ranks (default: all slots of the hosts, or the cores here)")
    parser.add_argument("-H", dest="hosts", metavar="HOSTS", help="hosts with their slots: n1:2,n2:2")
    parser.add_argument("--network", metavar="CIDR", help="the network for the ranks' traffic")
    parser.add_argument("--candidates", type=int, default=6, metavar="N", help="to try (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="of the first tries (default: %(default)s)")
    parser.add_argument(
        "--starts", type=int, default=6, metavar="N", help="of the winner and of the defaults, in turn (default: 6)"
    )
    parser.add_argument(
        "--nondeterministic", action="store_true", help="try sync.deterministic false, too: sums then differ by timing"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides what is tried (default: 0)")
    parser.add_argument("--shared", type=Path, metavar="DIR", help="a folder that all hosts see (default: this one)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the profile (default: NAME.profile)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    return parser


def main(words: Sequence[str]) -> int:
    """Search, write the profile, and say what was found; what is tried now goes to stderr."""
    rest, settings = split_settings(words)
    arguments = build_parser().parse_args(rest)
    recipe = recipe_of(arguments.recipe)
    check(arguments)
    flat = tuple(word for name, value in settings for word in (name, value) if word is not None)
    task = task_of(arguments, (recipe, *flat), frozenset(name.removeprefix("--") for name, _ in settings))
    with cleaned_up():
        found = tune(task, env=os.environ, say=_say)
    out = arguments.out or Path(f"{Path(recipe).stem}.profile")
    write(found.profile(), out)
    if arguments.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print(text(found, out), end="")
    return EXIT_DONE


def recipe_of(words: Sequence[str]) -> str:
    """The recipe of a command line.

    Raises:
        UsageError: it is some other command, whose steps nobody can time from outside.
    """
    named = words[2:] if Path(words[0]).name == "hvdtrain" and words[1:2] == ["run"] else words
    if len(named) != 1:
        raise UsageError(
            f"tune {' '.join(words)}",
            found="only a recipe, or `hvdtrain run` with one, says how long its steps take",
            remedy="hvdtrain tune digits, or FILE.py with recipe(config)",
        )
    return str(named[0])


def check(arguments: argparse.Namespace) -> None:
    """Refuse impossible numbers, all at once.

    Raises:
        UsageError: with every fault.
    """
    least = {"candidates": 1, "steps": LEAST_STEPS, "starts": 1, "np": 1}
    given = {name: getattr(arguments, name) for name in least}
    faults = [
        f"--{name} {value}, expected {least[name]} or more"
        for name, value in given.items()
        if value is not None and value < least[name]
    ]
    if faults:
        raise UsageError("tune", found="; ".join(faults).replace("--np", "-np"), remedy="hvdtrain tune --help")


def task_of(arguments: argparse.Namespace, recipe: tuple[str, ...], given: frozenset[str]) -> Task:
    """What the options ask for."""
    cores = len(os.sched_getaffinity(0))
    hosts = hostfile.parse(arguments.hosts, "-H") if arguments.hosts else ()
    size = arguments.np or sum(host.slots for host in hosts) or cores
    spec = LaunchSpec(command=("hvdtrain",), size=size, cores_per_host=cores, hosts=hosts)
    options = (("-H", arguments.hosts), ("--network", arguments.network))
    return Task(
        recipe=recipe,
        size=size,
        where=tuple(word for name, value in options if value for word in (name, value)),
        given=given,
        ranks_per_host=spec.busiest(),
        cores=cores,
        candidates=arguments.candidates,
        steps=arguments.steps,
        starts=arguments.starts,
        nondeterministic=arguments.nondeterministic,
        seed=arguments.seed,
        shared=arguments.shared or (Path.cwd() if hosts else None),
    )


def text(found: Found, out: Path) -> str:
    """For a terminal: the last round, the comparison, and what the profile holds."""
    last = found.rounds[-1]
    rows = [("ms per step", f"best of {len(found.rounds[0].ranking)} tried, {last.steps} steps")]
    rows += [(number(ms), candidate.text) for candidate, ms in last.ranking]
    over = found.over_default
    if over is None:
        said = "the defaults won"
    else:
        verdict = "proved" if found.proved else "NOT PROVED faster: the defaults are kept"
        said = f"{found.winner.text}\nover the defaults: {number(over.median)} ({spread(over)}), {verdict}"
    return f"{aligned(rows)}\n\n{said}\n{out} holds {'the winner' if found.proved else 'the defaults'}\n"


def _say(line: str) -> None:
    print(f"hvdtrain tune: {line}", file=sys.stderr, flush=True)
