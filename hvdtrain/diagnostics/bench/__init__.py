"""How fast it is, and against what: one module per question, and what they share.

Every comparison alternates its sides within one run and starts each of them several times; a start gives one number, a
side's figure is the median of its starts with an exact interval, and no conclusion is drawn where that is too wide.

    from hvdtrain.diagnostics.bench import ask
    report = ask("overhead", starts=7)
    report.as_json()["cases"]["step"]["hvdtrain"]["median_us"]
    print(table(report))                                 # hvdtrain.diagnostics.bench.table

`statistics` knows medians, intervals and verdicts; `alternation` the order of sides; `circumstances` what a figure
depends on; `jobs` how ranks are started; `ranks/` holds the programs that run inside them; `report`, `table` and
`picture` show what came out.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvdtrain.diagnostics.bench.report import Report

# question -> what it asks; each is a module here with a function of the same name
QUESTIONS: dict[str, str] = {
    "step": "ms per step on four models: hvdtrain, plain and tuned Horovod, DDP over Gloo, and no communication",
    "overhead": "microseconds per step of the trainer over a hand-written Horovod loop, on one parameter",
    "allreduce": "time of one all-reduce by size: MPI, Horovod, shared memory, Gloo, beside a plain copy",
    "launch": "seconds to the first step against bare mpirun; import and command times",
    "data": "time in which steps wait for batches; time to seek into an epoch",
    "checkpoint": "how long steps are blocked, written bytes per second, restart, and what a training loses",
    "init": "one computation before and after Horovod starts",
    "scaling": "efficiency at 1 to N ranks, with and without what computing ranks take from each other",
}


def ask(question: str, **parameters: Any) -> Report:
    """The answer to one question; see its module for its parameters."""
    module = import_module(f"hvdtrain.diagnostics.bench.{question}")
    report: Report = getattr(module, question)(**parameters)
    return report
