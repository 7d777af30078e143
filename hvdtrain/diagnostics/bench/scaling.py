"""`bench scaling`: efficiency at 1 to N ranks, with and without what computing ranks take from each other.

The work per rank is the same at any number of ranks. Ranks that only compute slow each other down already (cores,
caches, memory); `no_communication` shows by how much. The efficiency of hvdtrain is given twice: over one rank alone,
which holds that contention, and over as many ranks that only compute, which is what communication costs.

    report = scaling(starts=7, sizes=(1, 2))
    report.case("2").ratio("no_communication", "hvdtrain")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, alternate
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.report import Case, Finding, Report
from hvdtrain.diagnostics.bench.statistics import ratio
from hvdtrain.diagnostics.bench.step import STRATEGY, milliseconds

SIDES = ("no_communication", "hvdtrain")


def scaling(
    *,
    starts: int = 7,
    sizes: Sequence[int] | None = None,
    model: str = "cnn",
    steps: int | None = None,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure all sizes and both sides, in turn.

    Args:
        starts: of each side at each size.
        sizes: numbers of ranks, ascending; 1 to the number of cores if None.
        model: which.
        steps: per start; what suits the model if None.
        env: what jobs inherit.
        say: is told what is measured now.
    """
    before = observe(jobs.inherited(env))
    sizes = sizes or range(1, len(os.sched_getaffinity(0)) + 1)
    task = {"models": [model], "steps": steps, "strategy": STRATEGY}
    started = {
        f"{size} {side}": jobs.hvdtrain_launch("step", {**task, "side": side}, size=size)
        for size in sizes
        for side in SIDES
    }
    measured = alternate(
        {name: partial(milliseconds, [job], env) for name, job in started.items()}, rounds=starts, say=say
    )
    commands = {name: jobs.shown(job) for name, job in started.items()}
    where = before.closed(load_average(), starts=starts, commands=commands)
    return report_of(by_size(measured[model]), where, model=model)


def by_size(measured: Mapping[str, list[float]]) -> Samples:
    """From "size side" -> numbers to size -> side -> numbers."""
    samples: Samples = {}
    for name, numbers in measured.items():
        size, side = name.split()
        samples.setdefault(size, {})[side] = numbers
    return samples


def report_of(samples: Samples, circumstances: Circumstances, *, model: str) -> Report:
    """Figures and findings from ms per step at each number of ranks."""
    cases = [Case(size, "ms", sides) for size, sides in samples.items()]
    alone = cases[0].samples["no_communication"]
    findings = []
    for case in cases:
        of = case.samples
        ranks = f"{case.name} ranks" if case.name != "1" else "1 rank"
        findings += [
            Finding(text=f"{ranks}: what contention leaves", figure=ratio(alone, of["no_communication"])),
            Finding(text=f"{ranks}: what communication leaves", figure=case.ratio("no_communication", "hvdtrain")),
            Finding(text=f"{ranks}: efficiency of hvdtrain, both together", figure=ratio(alone, of["hvdtrain"])),
        ]
    return Report(
        question="scaling",
        group="ranks",
        cases=cases,
        circumstances=circumstances,
        findings=findings,
        notes=(f"{model}: the same samples per rank and step at any number of ranks",),
    )
