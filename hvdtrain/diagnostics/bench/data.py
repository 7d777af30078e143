"""`bench data`: in what part of the time steps wait for batches, and how long it takes to seek into an epoch.

A step and the decoding of a batch are loops that spend time on a core; decoding takes a stated part of a step. One
worker process decodes; beside it, no worker (what one would lose) and torch's own loader with one worker. Seeking is
from a saved position in the middle of an epoch to the first batch after it, for epochs of 10^4 to 10^9 samples.

    report = data(starts=7)
    report.case("stall_0.5").estimate("hvdtrain")           # percent
    report.case("seek_1e9").estimate("hvdtrain")            # ms
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, join
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.report import Case, Finding, Report

MOST_STALL_PERCENT = 2.0
SAMPLES = (10**4, 10**5, 10**6, 10**7, 10**8, 10**9)  # in the epochs that are sought into
MOST_SEEK_MS = 10.0
PARTS = (0.25, 0.5, 0.9)  # of a step, that decoding takes
JUDGED_PART = 0.5  # up to which the stall is limited


def data(
    *,
    starts: int = 7,
    step_s: float = 0.04,
    steps: int = 40,
    parts: Sequence[float] = PARTS,
    samples: Sequence[int] = SAMPLES,
    repeats: int = 5,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure stalls and seeks in several processes.

    Args:
        starts: how many processes for each of the two.
        step_s: what a step computes, in seconds of a core.
        steps: of each side in a start.
        parts: of a step, that decoding a batch takes.
        samples: in the epochs that are sought into.
        repeats: of each seek in a start.
        env: what they inherit.
        say: is told what is measured now.
    """
    before = observe(jobs.inherited(env))
    stall = {"kind": "stall", "step_s": step_s, "steps": steps, "parts": list(parts)}
    seek = {"kind": "seek", "samples": list(samples), "repeats": repeats}
    found = []
    for number in range(starts):
        say(f"start {number + 1} of {starts}")
        for task in (stall, seek):
            found += jobs.run(jobs.alone("data", {**task, "round": number}), env=env)
    return report_of(join(found), before.closed(load_average(), starts=starts))


def report_of(samples: Samples, circumstances: Circumstances) -> Report:
    """Figures and findings from percents and ms."""
    cases = [Case(name, "percent" if name.startswith("stall") else "ms", of) for name, of in samples.items()]
    return Report(
        question="data",
        group="cases",
        cases=cases,
        circumstances=circumstances,
        findings=[_finding(case) for case in cases],
        notes=(
            "stall_0.5: decoding a batch takes half a step; one worker, and for comparison none, and torch's loader",
        ),
    )


def _finding(case: Case) -> Finding:
    text, limit = f"{case.name}: ms to the first batch", limit_of(case)
    if case.unit == "percent":
        text = f"{case.name}: percent of the time in which steps wait"
    return Finding(text=text, figure=case.estimate("hvdtrain"), at_most=limit, needs_quiet=True)


def limit_of(case: Case) -> float | None:
    """What the figure of a case is to be at most; None where decoding takes more than half a step."""
    if case.unit == "ms":
        return MOST_SEEK_MS
    part = float(case.name.removeprefix("stall_"))
    return MOST_STALL_PERCENT if part <= JUDGED_PART else None
