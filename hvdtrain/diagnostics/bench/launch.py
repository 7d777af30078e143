"""`bench launch`: seconds to the first step against bare mpirun of the same program, and what commands cost alone.

`hvdtrain launch` looks for a launcher, asks its version and starts it; a training has then made one step on a small
model. Bare mpirun starts the very same program. Import times are those of `import hvdtrain` inside a new process, and
commands are timed from their start to their end, Python's own start included.

    report = launch(starts=7)
    report.case("first_step").ratio("hvdtrain_launch", "mpirun")
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, alternate
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.report import Case, Finding, Report
from hvdtrain.errors import HvdtrainError

MOST_OVER_MPIRUN = 1.15
IMPORT = "import time; began = time.perf_counter(); import hvdtrain; print(1e3 * (time.perf_counter() - began))"
HVDTRAIN = (sys.executable, "-m", "hvdtrain")
COMMANDS: dict[str, tuple[str, ...]] = {
    "python": (sys.executable, "-c", "pass"),
    "help": (*HVDTRAIN, "--help"),
    "launch_dry_run": (*HVDTRAIN, "launch", "-np", "2", "--dry-run", "--", "true"),
}
LIMITS_MS = {"import": 100.0, "help": 200.0, "launch_dry_run": 200.0}
COMMAND_TIMEOUT_S = 60.0


def launch(
    *,
    starts: int = 7,
    size: int = 2,
    model: str = "cnn",
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Start jobs and commands in turn.

    Args:
        starts: of each.
        size: ranks.
        model: whose first step is waited for.
        env: what they inherit.
        say: is told what is measured now.
    """
    before = observe(jobs.inherited(env))
    started = {
        "hvdtrain_launch": jobs.hvdtrain_launch("first_step", {"model": model}, size=size),
        "mpirun": jobs.mpirun("first_step", {"model": model}, size=size),
    }
    first = {side: partial(_first_step, job, env) for side, job in started.items()}
    commands = {name: partial(_command, argv, env) for name, argv in COMMANDS.items()}
    samples = alternate(first, rounds=starts, say=say)
    samples |= alternate({**commands, "import": partial(_import, env)}, rounds=starts, say=say)
    shown = {side: jobs.shown(job) for side, job in started.items()}
    return report_of(samples, before.closed(load_average(), starts=starts, commands=shown))


def _first_step(job: jobs.Job, env: Mapping[str, str]) -> dict[str, float]:
    began = time.time()
    done: list[float] = jobs.run(job, env=env)
    return {"first_step": statistics.mean(done) - began}


def _command(argv: tuple[str, ...], env: Mapping[str, str]) -> dict[str, float]:
    return {"command": _command_ms(argv, env)[0]}


def _import(env: Mapping[str, str]) -> dict[str, float]:
    return {"command": float(_command_ms((sys.executable, "-c", IMPORT), env)[1])}


def _command_ms(argv: tuple[str, ...], env: Mapping[str, str]) -> tuple[float, str]:
    began = time.perf_counter()
    status, output = jobs.execute(argv, env=env, timeout_s=COMMAND_TIMEOUT_S)
    took_s = time.perf_counter() - began
    if status != 0:
        raise HvdtrainError("time a command", found=f"{jobs.status_text(status)}:\n{output}")
    return 1e3 * took_s, output


def report_of(samples: Samples, circumstances: Circumstances) -> Report:
    """Figures and findings from seconds to the first step and ms of commands."""
    first = Case("first_step", "s", samples["first_step"])
    commands = Case("command", "ms", samples["command"])
    over = Finding(
        text="seconds to the first step, hvdtrain launch over bare mpirun",
        figure=first.ratio("hvdtrain_launch", "mpirun"),
        at_most=MOST_OVER_MPIRUN,
    )
    limits = [
        Finding(text=f"ms of {name}", figure=commands.estimate(name), at_most=limit, needs_quiet=True)
        for name, limit in LIMITS_MS.items()
    ]
    return Report(
        question="launch",
        group="cases",
        cases=[first, commands],
        circumstances=circumstances,
        findings=[over, *limits],
    )
