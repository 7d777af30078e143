"""`bench init`: the same computation before and after Horovod starts, under plain mpirun and under hvdtrain launch.

What slows down between the two is taken by Horovod's background thread, by a core to which both are bound, or by a
number of threads that something has changed. Neither side communicates while it computes.

    report = init(starts=7)
    report.case("horovod").ratio("after", "before")
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from functools import partial

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, alternate
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.report import Case, Finding, Report


def init(
    *,
    starts: int = 7,
    size: int = 2,
    model: str = "cnn",
    steps: int = 20,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure both, in turn.

    Args:
        starts: of each side.
        size: ranks.
        model: whose forward and backward pass is the computation.
        steps: of each, before and after.
        env: what jobs inherit.
        say: is told what is measured now.
    """
    before = observe(jobs.inherited(env))
    task = {"model": model, "steps": steps}
    started = {
        "horovod": jobs.mpirun("init", {**task, "side": "horovod"}, size=size),
        "hvdtrain": jobs.hvdtrain_launch("init", {**task, "side": "hvdtrain"}, size=size),
    }

    def measure(job: jobs.Job) -> dict[str, float]:
        ranks = jobs.run(job, env=env)
        return {name: statistics.mean(rank[name] for rank in ranks) for name in ranks[0]}

    samples = alternate({side: partial(measure, job) for side, job in started.items()}, rounds=starts, say=say)
    commands = {side: jobs.shown(job) for side, job in started.items()}
    return report_of(samples, before.closed(load_average(), starts=starts, commands=commands))


def report_of(samples: Samples, circumstances: Circumstances) -> Report:
    """Figures and findings from ms: what is timed -> side -> numbers."""
    cases = [
        Case(side, "ms", {"before": samples["before"][side], "after": samples["after"][side]})
        for side in samples["before"]
    ]
    return Report(
        question="init",
        group="cases",
        cases=[*cases, Case("start", "ms", samples["start"])],
        circumstances=circumstances,
        findings=[
            Finding(
                text=f"{case.name}: a computation after the start, over before", figure=case.ratio("after", "before")
            )
            for case in cases
        ],
    )
