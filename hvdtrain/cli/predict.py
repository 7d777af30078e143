"""`hvdtrain predict RECIPE`: what a step will take on more ranks, or over another network, before you have them.

hvdtrain predict digits --ranks 4,8
hvdtrain predict digits -H n1:1,n2:1 --ranks 3,4 --out digits.profile
hvdtrain predict bytelm --ranks 8 --bandwidth 100Mbit --latency 50us
hvdtrain predict --step step.json --allreduce allreduce.json --model cnn --ranks 8 --bandwidth 1Gbit
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtrain import profile
from hvdtrain.cli.bench import sizes
from hvdtrain.cli.settings import split_settings
from hvdtrain.diagnostics.bench.jobs import cleaned_up
from hvdtrain.diagnostics.predict.measure import Subject, from_reports, measure
from hvdtrain.diagnostics.predict.model import Fitted, Forecast, Network, forecast
from hvdtrain.diagnostics.predict.report import as_json, text
from hvdtrain.diagnostics.trainings import LEAST_STEPS
from hvdtrain.errors import EXIT_DONE, UsageError

RATES = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}  # in Mbit/s
TIMES = {"us": 1.0, "ms": 1e3, "s": 1e6}  # in microseconds


def build_parser() -> argparse.ArgumentParser:
    """The options; settings of the recipe, `--section.field value`, are taken out before."""
    parser = argparse.ArgumentParser(
        prog="hvdtrain predict",
        description="what a step will take on more ranks or over another network, from measurements on one and two",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE|FILE.py", help="and its settings, as after `hvdtrain run`")
    parser.add_argument("--ranks", type=sizes, required=True, metavar="N,N", help="numbers of ranks to predict for")
    parser.add_argument("-H", dest="hosts", metavar="HOSTS", help="two hosts to measure on: n1:1,n2:1 (default: here)")
    parser.add_argument("--network", metavar="CIDR", help="the network between them")
    parser.add_argument(
        "--bandwidth", type=_scaled(RATES), metavar="RATE", help="predict for links of this rate: 100Mbit, 1Gbit"
    )
    parser.add_argument(
        "--latency", type=_scaled(TIMES), metavar="TIME", help="and this latency of a message (default: 50us)"
    )
    parser.add_argument(
        "--cores", type=int, metavar="N", help="cores that all ranks share (default: those of this host without -H)"
    )
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="of a measurement (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=3, metavar="N", help="of each job on two ranks (default: 3)")
    parser.add_argument("--shared", type=Path, metavar="DIR", help="a folder that all hosts see (default: this one)")
    parser.add_argument("--step", type=Path, metavar="FILE", help="instead of a recipe: a report of bench step --json")
    parser.add_argument("--allreduce", type=Path, metavar="FILE", help="and one of bench allreduce --json")
    parser.add_argument("--model", metavar="NAME", help="and which of its models")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a profile for `run --profile`, new or there already")
    return parser


def main(words: Sequence[str]) -> int:
    """Measure or read, predict, and say so; what is measured now goes to stderr."""
    rest, settings = split_settings(words)
    arguments = build_parser().parse_args(rest)
    check(arguments)
    network = network_of(arguments)
    if arguments.step:
        fitted = from_reports(_read(arguments.step), _read(arguments.allreduce), model=arguments.model)
        subject = f"the model {arguments.model} of {arguments.step}"
    else:
        flat = tuple(word for name, value in settings for word in (name, value) if word is not None)
        with cleaned_up():
            fitted = measured(arguments, (arguments.recipe, *flat))
        subject = " ".join((arguments.recipe, *flat))
    forecasts = [forecast(fitted, size=size, network=network) for size in arguments.ranks]
    if arguments.out:
        save(arguments.out, forecasts, subject)
    if arguments.json:
        print(json.dumps(as_json(fitted, forecasts, network=network), indent=2))
    else:
        print(text(fitted, forecasts, network=network, subject=subject), end="")
    return EXIT_DONE


def check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be predicted, all faults at once.

    Raises:
        UsageError: with every fault.
    """
    reports = (arguments.step, arguments.allreduce, arguments.model)
    faults = {
        "a recipe, or --step with --allreduce and --model": not arguments.recipe and not all(reports),
        "either a recipe or --step, --allreduce and --model": bool(arguments.recipe) and any(reports),
        f"--steps {LEAST_STEPS} or more, not {arguments.steps}": arguments.steps < LEAST_STEPS,
        f"--starts 1 or more, not {arguments.starts}": arguments.starts < 1,
        f"--cores 1 or more, not {arguments.cores}": arguments.cores is not None and arguments.cores < 1,
        "--latency together with --bandwidth": arguments.latency is not None and arguments.bandwidth is None,
    }
    if found := [text for text, wrong in faults.items() if wrong]:
        raise UsageError("predict", found="expected " + "; ".join(found), remedy="hvdtrain predict --help")


def measured(arguments: argparse.Namespace, recipe: tuple[str, ...]) -> Fitted:
    """The model fitted to jobs that are run now."""
    given = (("-H", arguments.hosts), ("--network", arguments.network))
    where = [word for name, value in given if value for word in (name, value)]
    env = dict(os.environ)
    if not arguments.hosts:
        env.setdefault("OMP_NUM_THREADS", "1")  # one and two ranks here are to compute alike
    cores = arguments.cores or (None if arguments.hosts else len(os.sched_getaffinity(0)))
    subject = Subject(
        recipe=recipe,
        where=tuple(where),
        cores=cores,
        crowded=cores is not None and max(arguments.ranks) > cores,
        steps=arguments.steps,
        starts=arguments.starts,
        shared=arguments.shared or (Path.cwd() if arguments.hosts else None),
    )
    return measure(subject, env=env, say=_say)


def network_of(arguments: argparse.Namespace) -> Network | None:
    """The network that was asked for; None for that of the measurement."""
    if arguments.bandwidth is None:
        return None
    latency_us = 50.0 if arguments.latency is None else arguments.latency
    return Network(bandwidth_mbit=arguments.bandwidth, latency_us=latency_us)


def save(file: Path, forecasts: Sequence[Forecast], subject: str) -> None:
    """Put the predictions into a profile, which keeps whatever else it holds."""
    found = profile.read(file) if file.exists() else profile.Profile(origin={"predict": subject})
    predictions = {one.size: profile.Prediction(ms_per_step=one.ms, low=one.low, high=one.high) for one in forecasts}
    profile.write(found.with_predictions(predictions), file)


def _read(file: Path) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"read the report {file}", found=str(error), remedy="hvdtrain bench step --json") from error
    return tree


def _scaled(units: dict[str, float]) -> Any:
    """A reader of numbers with a unit."""

    def read(text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower().removesuffix("/s"))
        if match is None or match[2] not in units or float(match[1]) <= 0:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a number and one of {', '.join(units)}")
        return float(match[1]) * units[match[2]]

    return read


def _say(line: str) -> None:
    print(f"hvdtrain predict: {line}", file=sys.stderr, flush=True)
