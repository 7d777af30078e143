"""`bench checkpoint`: how long saves block steps, how fast bytes are written, what a restart takes, what is lost.

The state is 500 MB in 32 tensors. `blocked` is the time that `save` keeps steps waiting, beside one copy of the state
in memory; `written` is bytes per second from the copy to a verified checkpoint, beside one file that is written and
fsynced; `restart` is finding, verifying and reading it, beside reading one file; `training` is ms per step where a
state is saved once in 20 seconds, beside the same steps without.

    report = checkpoint(starts=7, folder=Path("/scratch"))
    report.case("blocked").ratio("hvdtrain", "raw")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, join
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.report import Case, Finding, Report

UNITS = {"blocked": "s", "written": "bytes_per_s", "restart": "s", "training": "ms"}
MOST_COPIES = 1.3
LEAST_OF_RAW = 0.8
MOST_LOST = 1.035


def checkpoint(
    *,
    starts: int = 7,
    nbytes: int = 500 * 10**6,
    every_s: float = 20.0,
    repeats: int = 3,
    model: str = "cnn",
    folder: Path = Path(),
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure saves in several processes, and then trainings.

    Args:
        starts: how many processes for each of the two.
        nbytes: of the state.
        every_s: seconds between saves of the training.
        repeats: of each side in a start, after one that is not counted.
        model: of the training.
        folder: on the file system that is asked about; what is written there is deleted.
        env: what they inherit.
        say: is told what is measured now.
    """
    before = observe(jobs.inherited(env))
    common = {"folder": str(folder.absolute()), "nbytes": nbytes}
    saving = {**common, "kind": "save", "repeats": repeats}
    training = {**common, "kind": "training", "every_s": every_s, "model": model, "repeats": 1}
    found = []
    for number in range(starts):
        say(f"start {number + 1} of {starts}")
        for task in (saving, training):
            found += jobs.run(jobs.alone("checkpoint", {**task, "round": number}), env=env)
    return report_of(join(found), before.closed(load_average(), starts=starts), nbytes=nbytes, every_s=every_s)


def report_of(samples: Samples, circumstances: Circumstances, *, nbytes: int, every_s: float) -> Report:
    """Figures and findings."""
    cases = {name: Case(name, UNITS[name], of) for name, of in samples.items()}
    return Report(
        question="checkpoint",
        group="cases",
        cases=list(cases.values()),
        circumstances=circumstances,
        findings=[
            Finding(
                text="time that a save blocks steps, over a copy of the state",
                figure=cases["blocked"].ratio("hvdtrain", "raw"),
                at_most=MOST_COPIES,
            ),
            Finding(
                text="bytes per second of a verified checkpoint, over those of write and fsync",
                figure=cases["written"].ratio("hvdtrain", "raw"),
                at_least=LEAST_OF_RAW,
            ),
            Finding(
                text="time to restore, over the time to read one file",
                figure=cases["restart"].ratio("hvdtrain", "raw"),
            ),
            Finding(
                text=f"ms per step of a training that saves once in {every_s:g} s, over one that does not",
                figure=cases["training"].ratio("hvdtrain", "no_saves"),
                at_most=MOST_LOST,
            ),
        ],
        notes=(f"{nbytes / 1e6:g} MB of state",),
    )
