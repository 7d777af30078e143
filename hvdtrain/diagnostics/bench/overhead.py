"""`bench overhead`: microseconds per step that the trainer adds to a loop written by hand on Horovod.

The model is one number, on one rank, so that nothing but bookkeeping is left. The loop by hand clears the gradient,
computes the loss, goes backward, steps Horovod's optimizer and looks at the loss; it does not average the loss over
ranks. The trainer does all of that, and has its signal, metrics, recorder and watchdog on, with batches that are there.

    report = overhead(starts=7)
    report.case("step").ratio("hvdtrain", "horovod_loop")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, join
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.report import Case, Finding, Report, differences

MOST_US = 50.0


def overhead(
    *,
    starts: int = 7,
    steps: int = 300,
    blocks: int = 5,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure it in several processes, in each of which the sides alternate.

    Args:
        starts: how many processes.
        steps: in one block.
        blocks: of each side in a process.
        env: what they inherit.
        say: is told what is measured now.
    """
    before = observe(jobs.inherited(env))
    parts = []
    for number in range(starts):
        say(f"start {number + 1} of {starts}")
        job = jobs.hvdtrain_launch("overhead", {"steps": steps, "blocks": blocks, "round": number}, size=1)
        parts += jobs.run(job, env=env)
    where = before.closed(load_average(), starts=starts, commands={"all sides": jobs.shown(job)})
    return report_of(join(parts), where)


def report_of(samples: Samples, circumstances: Circumstances) -> Report:
    """Figures and findings from microseconds per step."""
    cases = [Case(name, "us", samples[name]) for name in ("step", "step_cpu")]
    return Report(
        question="overhead",
        group="cases",
        cases=cases,
        circumstances=circumstances,
        findings=[finding for case in cases for finding in _findings(case)],
        notes=("step_cpu: time of the main thread on a core, which other work on the machine hardly changes",),
    )


def _findings(case: Case) -> list[Finding]:
    of = case.samples
    return [
        Finding(
            text=f"{case.name}: microseconds of the trainer over a loop by hand",
            figure=differences(of["hvdtrain"], of["horovod_loop"]),
            at_most=MOST_US,
            needs_quiet=case.name == "step",
        ),
        Finding(
            text=f"{case.name}: microseconds of the sentinel at its default interval",
            figure=differences(of["hvdtrain_sentinel"], of["hvdtrain"]),
        ),
    ]
