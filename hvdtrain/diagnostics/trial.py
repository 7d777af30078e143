"""A real start of some ranks, by the launcher that `hvdtrain launch` would take, to see whether they find each other.

facts = start_trial(2, os.environ, limit_s=180)
facts.is_right                                  # True: all were in one job, and got the same right sum
facts.with_horovod_ms / facts.alone_ms          # what Horovod costs a computation
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.checks.trial import TrialFacts
from hvdtrain.diagnostics.software import fault_of
from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.allocation import allocation
from hvdtrain.launch.process import kill_group
from hvdtrain.launch.selection import select
from hvdtrain.launch.spec import Invocation, LaunchSpec

RANK = Path(__file__).with_name("trial_rank.py")
LOG = logging.getLogger("hvdtrain.doctor")
GRACE_S = 5.0
LIMIT_S = 180.0  # the first import of torch from a cold network disk takes most of it
NOISE = ("---", "prterun", "mpirun", "srun: ", "Primary job", "a non-zero exit code")


def _specification(ranks: int, env: Mapping[str, str]) -> LaunchSpec:
    given = allocation(env)
    cores = len(os.sched_getaffinity(0))
    return LaunchSpec(
        command=(sys.executable, "-P", str(RANK)),
        size=ranks,
        cores_per_host=(given.cores_per_host if given else None) or cores,
        hosts=given.hosts if given else (),
        as_root=os.geteuid() == 0,
    )


def start_trial(ranks: int, env: Mapping[str, str], *, limit_s: float = LIMIT_S) -> TrialFacts:
    """Start `ranks` ranks that add their numbers, and end them all when they take longer than `limit_s`."""
    try:
        choice = select("auto", env)
        invocation = choice.build(_specification(ranks, env), env)
    except HvdtrainError as error:
        return TrialFacts(ranks=ranks, fault=error.found, remedy=error.remedy)
    started = time.monotonic()
    output, fault = _run(invocation, env, limit_s)
    return trial_facts(ranks, choice.tool.text, output, fault, seconds=time.monotonic() - started)


def _run(invocation: Invocation, env: Mapping[str, str], limit_s: float) -> tuple[str, str]:
    """What the ranks printed, and what went wrong."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            invocation.argv,
            env=invocation.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            fault = fault_of(process.wait(limit_s), "")
        except subprocess.TimeoutExpired:
            fault = f"they had not ended after {limit_s:.0f} s"
        finally:
            _end(process)
        output.seek(0)
        errors.seek(0)
        return output.read(), f"{fault}: {last_words(errors.read())}" if fault else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the launcher to end its ranks, which are in groups of their own, then end its own group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            LOG.warning("the launcher did not end in %.0f s and is killed", GRACE_S)
    kill_group(process.pid)
    process.wait()


def last_words(text: str) -> str:
    """The line of a failed job's stderr that says most: the first error of Python, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(NOISE)]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return next(iter(errors + lines[-1:]), "it said nothing")[:300]


def trial_facts(ranks: int, launcher: str, output: str, fault: str, *, seconds: float) -> TrialFacts:
    """What the reports in `output` come to."""
    reports: list[dict[str, Any]] = [json.loads(text)["trial"] for text in re.findall(r'\{"trial": \{.*?\}\}', output)]
    slowest = max(reports, key=lambda report: report["with_horovod_ms"], default={})
    return TrialFacts(
        ranks=ranks,
        launcher=launcher,
        fault=fault,
        sizes=tuple(report["size"] for report in reports),
        sums=tuple(report["sum"] for report in reports),
        init_s=max((report["init_s"] for report in reports), default=0.0),
        alone_ms=slowest.get("alone_ms", 0.0),
        with_horovod_ms=slowest.get("with_horovod_ms", 0.0),
        seconds=seconds,
    )
