"""`bench allreduce`: one all-reduce by size: MPI, Horovod, hvdtrain's shared memory and Gloo, beside a plain copy.

Bus bandwidth is 2 (size - 1) / size bytes for each byte of the buffer, over the time: what every rank must at least
send and receive. It is given as a part of the rate at which all ranks copy the same buffer at the same time.

    report = allreduce(starts=7)
    report.case("64MB").ratio("shared_memory", "copy")
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, alternate
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.report import Case, Finding, Report
from hvdtrain.diagnostics.bench.statistics import Estimate

SIZES = (64, 2**10, 2**14, 2**18, 2**22, 64 * 2**20, 256 * 2**20)
JUDGED = "64MB"
MOST_COPIES = 2.0
OWN = "shared_memory"


def label(nbytes: int) -> str:
    """A size for a person: ``64B``, ``16KB``, ``64MB``."""
    for unit, factor in (("MB", 2**20), ("KB", 2**10)):
        if nbytes >= factor:
            return f"{nbytes // factor}{unit}"
    return f"{nbytes}B"


def allreduce(
    *,
    starts: int = 7,
    sizes: Sequence[int] = SIZES,
    size: int = 2,
    blocks: int = 5,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure two jobs in turn: one under MPI, in which its sides alternate, and one under torchrun for Gloo.

    Args:
        starts: of each job.
        sizes: of the buffers, in bytes; multiples of 4.
        size: ranks.
        blocks: of each side in a start.
        env: what jobs inherit.
        say: is told what is measured now.
    """
    before = observe(jobs.inherited(env))
    task = {"sizes": list(sizes), "blocks": blocks}
    started = {
        "mpi": jobs.hvdtrain_launch("allreduce", {**task, "backend": "mpi"}, size=size),
        "gloo": jobs.torchrun("allreduce", {**task, "backend": "gloo"}, size=size),
    }

    def measure(job: jobs.Job) -> dict[str, float]:
        ranks = jobs.run(job, env=env)
        pairs = [(nbytes, side) for nbytes in ranks[0] for side in ranks[0][nbytes]]
        return {f"{nbytes} {side}": statistics.mean(rank[nbytes][side] for rank in ranks) for nbytes, side in pairs}

    measured = alternate({name: partial(measure, job) for name, job in started.items()}, rounds=starts, say=say)
    commands = {name: jobs.shown(job) for name, job in started.items()}
    where = before.closed(load_average(), starts=starts, commands=commands)
    return report_of(by_size(measured), where, size=size)


def by_size(measured: Samples) -> Samples:
    """From "size side" -> job -> numbers to label -> side -> numbers."""
    samples: Samples = {}
    for name, of_jobs in measured.items():
        nbytes, side = name.split()
        (numbers,) = of_jobs.values()
        samples.setdefault(label(int(nbytes)), {})[side] = numbers
    return samples


def report_of(samples: Samples, circumstances: Circumstances, *, size: int) -> Report:
    """Figures and findings from microseconds per operation."""
    cases = [Case(name, "us", sides) for name, sides in samples.items()]
    return Report(
        question="allreduce",
        group="sizes",
        cases=cases,
        circumstances=circumstances,
        findings=[finding for case in cases for finding in _findings(case, size)],
        notes=(f"{size} ranks, one thread each; MPI and Horovod in the same processes, Gloo in others",),
    )


def _findings(case: Case, size: int) -> list[Finding]:
    found = []
    if OWN in case.samples:
        text = f"{case.name}: {OWN} over horovod"
        found.append(Finding(text=text, figure=case.ratio(OWN, "horovod"), at_most=1.0))
    if case.name == JUDGED:
        judged = OWN if OWN in case.samples else "horovod"
        text = f"{case.name}: {judged} over a plain copy"
        found.append(Finding(text=text, figure=case.ratio(judged, "copy"), at_most=MOST_COPIES))
    if case.name.endswith("MB"):
        found += [
            Finding(
                text=f"{case.name}: bus bandwidth of {side}, as a part of the rate of a copy",
                figure=scaled(case.ratio("copy", side), 2 * (size - 1) / size),
            )
            for side in case.samples
            if side != "copy"
        ]
    return found


def scaled(one: Estimate, factor: float) -> Estimate:
    """An estimate times a constant."""
    low = None if one.low is None else one.low * factor
    high = None if one.high is None else one.high * factor
    return Estimate(median=one.median * factor, low=low, high=high, count=one.count)
