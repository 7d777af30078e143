"""What the model of scaling is fitted to: a few short jobs on one and two ranks, or reports of `bench` made before.

fitted = measure(Subject(recipe=("digits",), where=("-H", "n1:1,n2:1")), env=os.environ)
fitted = from_reports(step_report, allreduce_report, model="cnn")
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.predict.line import Line, fit
from hvdtrain.diagnostics.predict.model import Fitted, Link
from hvdtrain.diagnostics.trainings import HVDTRAIN, Timed, Trial, timed
from hvdtrain.errors import UsageError
from hvdtrain.launch.tool import ASSUMED, find_tool

LINK_PARTS = (4, 2, 1)  # of a group of gradients: the sizes of messages that all-reduces are made of
LINK_LIMIT_S = 1.5
LEAST_BYTES = 4096
UNITS = {"B": 1, "KB": 2**10, "MB": 2**20}
PREDICTABLE = ("allreduce", "auto")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be predicted.

    Attributes:
        recipe: its name or file, and settings, as after `hvdtrain run`.
        where: options of `hvdtrain launch` for the measurement: hosts and network.
        cores: that all ranks share, where they are not those of hosts of their own.
        crowded: whether more ranks than cores are to be predicted for.
        steps: of each short training.
        starts: of each job on two ranks.
        shared: a folder that all hosts see.
    """

    recipe: tuple[str, ...]
    where: tuple[str, ...] = ()
    cores: int | None = None
    crowded: bool = False
    steps: int = 30
    starts: int = 3
    shared: Path | None = None


def measure(subject: Subject, *, env: Mapping[str, str], say: Callable[[str], None]) -> Fitted:
    """Run the jobs and fit the model to what they say.

    Raises:
        HvdtrainError: one of them failed.
        UsageError: the exchange is none that the model knows.
    """
    two, spread = _two_ranks(subject, (), env, say)
    first = two[0]
    if first.strategy not in PREDICTABLE:
        found = f"sync.strategy {first.strategy}, and the model is of an all-reduce at each step"
        raise UsageError("predict", found=found, remedy="--sync.strategy allreduce")
    nbytes = min(first.gradient_bytes, first.bucket_bytes)
    by_density = {1.0: statistics.median(one.ms_per_step for one in two)}
    links = {1.0: _link(subject, (), nbytes, env, say)}
    if subject.crowded:
        on_one = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
        crowd, spread = _two_ranks(subject, on_one, env, say)
        by_density[2.0] = statistics.median(one.ms_per_step for one in crowd)
        links[2.0] = _link(subject, on_one, nbytes, env, say)
    tool = find_tool("mpirun", env) or ASSUMED["mpirun"]
    return Fitted(
        compute=_compute(subject, first.samples, env, say),
        two_ranks=by_density,
        spread=spread,
        links=links,
        gradient_bytes=first.gradient_bytes,
        bucket_bytes=first.bucket_bytes,
        samples=first.samples,
        cores=subject.cores,
        between_hosts="-H" in subject.where,
        flavour=tool.flavour,
        version=tool.version,
    )


def _two_ranks(
    subject: Subject, within: tuple[str, ...], env: Mapping[str, str], say: Callable[[str], None]
) -> tuple[list[Timed], float]:
    """Several short trainings on two ranks, and half of their range as a part of their median."""
    trial = Trial(recipe=subject.recipe, size=2, steps=subject.steps, where=subject.where, within=within)
    found = []
    for number in range(subject.starts):
        say(f"two ranks{' on one core' if within else ''}: start {number + 1} of {subject.starts}")
        found.append(timed(trial, env=env, folder=subject.shared))
    numbers = [one.ms_per_step for one in found]
    return found, (max(numbers) - min(numbers)) / 2 / statistics.median(numbers)


def _compute(subject: Subject, samples: int, env: Mapping[str, str], say: Callable[[str], None]) -> Line:
    """Ms of a step on one rank alone, by its samples."""
    points = {}
    for of_rank in sorted({max(1, samples // 2), max(1, samples // 4)}):
        say(f"one rank with {of_rank} samples")
        recipe = (*subject.recipe, "--train.global_batch_size", str(of_rank))
        trial = Trial(recipe=recipe, size=1, steps=subject.steps, where=subject.where)
        points[float(of_rank)] = timed(trial, env=env, folder=subject.shared).ms_per_step
    return fit(points)


def _link(
    subject: Subject, within: tuple[str, ...], nbytes: int, env: Mapping[str, str], say: Callable[[str], None]
) -> Link:
    say(f"the link between two ranks{' on one core' if within else ''}")
    launcher = (*HVDTRAIN, "launch", "-np", "2", "--no-preflight", *subject.where, "--", *within)
    sizes = sorted({max(LEAST_BYTES, nbytes // part // 4 * 4) for part in LINK_PARTS})
    job = jobs.Job(launcher=launcher, program="link", task={"sizes": sizes, "limit_s": LINK_LIMIT_S}, size=2)
    return link_of(jobs.run(job, env=env, shared=subject.shared))


def link_of(ranks: list[Mapping[str, Mapping[str, float]]]) -> Link:
    """From each rank's microseconds by size and side."""
    one_way, exchange, horovod = (
        fit({float(nbytes): statistics.mean(rank[nbytes][side] for rank in ranks) for nbytes in ranks[0]})
        for side in ("one_way", "exchange", "horovod")
    )
    unsteady = statistics.mean(of["exchange unsteady"] for rank in ranks for of in rank.values())
    return Link(one_way=one_way, exchange=exchange, horovod=horovod, unsteady=unsteady)


def from_reports(step: Mapping[str, Any], allreduce: Mapping[str, Any], *, model: str) -> Fitted:
    """The model fitted to `bench step --json` and `bench allreduce --json`, both of two ranks on one host.

    Raises:
        UsageError: they are not what they should be.
    """
    from hvdtrain.diagnostics.bench.models import build

    try:
        sides = step["models"][model]
        points = {nbytes_of(label): of["horovod"]["median_us"] for label, of in allreduce["sizes"].items()}
        side = sides.get("hvdtrain_allreduce", sides["hvdtrain"])
        alone, two = sides["no_communication"]["median_ms"], side["median_ms"]
        low, high = side["ci95_ms"] or (two, two)
    except (KeyError, TypeError, ValueError) as error:
        found = f"{error} is missing there"
        raise UsageError(
            f"predict the model {model} from reports", found=found, remedy="hvdtrain bench step --json > step.json"
        ) from error
    built = build(model)
    whole = fit(points)
    message = Line(whole.intercept / 2, whole.slope)  # an all-reduce of two ranks exchanges two halves
    tool = find_tool("mpirun", os.environ) or ASSUMED["mpirun"]
    return Fitted(
        compute=Line(alone, 0.0),
        two_ranks={1.0: two},
        spread=(high - low) / 2 / two,
        links={1.0: Link(one_way=message, exchange=message, horovod=whole)},
        gradient_bytes=sum(p.numel() * p.element_size() for p in built.model.parameters()),
        bucket_bytes=8 * 2**20,
        samples=2 * built.samples,
        fixed_per_rank=True,
        flavour=tool.flavour,
        version=tool.version,
    )


def nbytes_of(label: str) -> float:
    """From ``64KB`` to 65536.

    Raises:
        ValueError: it is no size.
    """
    match = re.fullmatch(r"(\d+)([KM]?B)", label)
    if match is None:
        raise ValueError(label)
    return float(int(match[1]) * UNITS[match[2]])
