"""How the ranks of a benchmark are started: each side by the launcher and the flags that its user would type.

A rank program is `python -m hvdtrain.diagnostics.bench.ranks.NAME TASK OUT`: TASK is JSON, and each rank writes its
result as JSON to ``OUT/rank-N.json``.

    job = hvdtrain_launch("step", {"side": "hvdtrain"}, size=2)
    results = run(job, env=os.environ)                     # one for each rank, in their order
    shown(job)                                             # "hvdtrain launch -np 2 -- python -m ..."
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.errors import HvdtrainError
from hvdtrain.install.proof import environment as root_environment
from hvdtrain.launch.process import PR_SET_PDEATHSIG, kill_group

TIMEOUT_S = 600.0
ENDING_S = 10.0  # for a job that is told to end
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # each rank computes with one thread, on all sides
UNBOUND = ("--bind-to", "none")
YIELDING = ("--mca", "mpi_yield_when_idle", "1")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Ranks to be started.

    Attributes:
        launcher: what stands before the command of the ranks.
        program: the module in `ranks/`.
        task: what it is to do.
        size: how many ranks.
        variables: set for the job, on top of the environment.
    """

    launcher: tuple[str, ...]
    program: str
    task: Mapping[str, Any]
    size: int
    variables: Mapping[str, str] = field(default_factory=dict)


def _python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"hvdtrain.diagnostics.bench.ranks.{program}")


def alone(program: str, task: Mapping[str, Any]) -> Job:
    """One rank without a launcher."""
    return Job(launcher=(), program=program, task=task, size=1)


def hvdtrain_launch(program: str, task: Mapping[str, Any], *, size: int) -> Job:
    """`hvdtrain launch`, without an option but the number of ranks."""
    launcher = (sys.executable, "-m", "hvdtrain", "launch", "-np", str(size), "--")
    return Job(launcher=launcher, program=program, task=task, size=size)


def mpirun(
    program: str,
    task: Mapping[str, Any],
    *,
    size: int,
    flags: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Job:
    """Plain `mpirun -np N`; more ranks than cores need to be allowed."""
    crowded = ("--oversubscribe",) if size > len(os.sched_getaffinity(0)) else ()
    launcher = ("mpirun", "-np", str(size), *crowded, *flags)
    return Job(launcher=launcher, program=program, task=task, size=size, variables=variables or {})


def torchrun(program: str, task: Mapping[str, Any], *, size: int) -> Job:
    """`torchrun` on this host."""
    module = (sys.executable, "-m", "torch.distributed.run")
    return Job(
        launcher=(*module, "--standalone", "--nproc-per-node", str(size), "--no-python"),
        program=program,
        task=task,
        size=size,
    )


def shown(job: Job) -> str:
    """The command of a job for a person, without its task and without paths of this machine."""
    words = (*job.launcher, *_python(job.program))
    short = ["python" if word == sys.executable else word for word in words]
    text = shlex.join(short).replace("python -m hvdtrain launch", "hvdtrain launch")
    text = text.replace("python -m torch.distributed.run", "torchrun").replace(" --no-python", "")
    return " ".join([*(f"{name}={value}" for name, value in job.variables.items()), text])


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of all jobs."""
    return {**env, **ONE_THREAD}


def as_root(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with what Open MPI wants to be told by root, if that is who we are."""
    return {**env, **root_environment(user_id=os.geteuid())}


def run(job: Job, *, env: Mapping[str, str], timeout_s: float = TIMEOUT_S, shared: Path | None = None) -> list[Any]:
    """Run a job to its end and give what its ranks have found, in their order.

    Args:
        job: what.
        env: what it inherits.
        timeout_s: after which it is ended.
        shared: a folder that all its hosts see; needed where they are several.

    Raises:
        HvdtrainError: it failed, or did not end in time.
    """
    with tempfile.TemporaryDirectory(prefix="hvdtrain-bench-", dir=shared) as folder:
        argv = [*job.launcher, *_python(job.program), json.dumps(job.task), folder]
        status, output = execute(argv, env={**as_root(inherited(env)), **job.variables}, timeout_s=timeout_s)
        files = [Path(folder, f"rank-{rank}.json") for rank in range(job.size)]
        if status != 0 or not all(file.exists() for file in files):
            raise HvdtrainError(f"measure {shown(job)}", found=f"{status_text(status)}:\n{output[-2000:]}")
        return [json.loads(file.read_text()) for file in files]


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, inside the context: jobs end with it, and temporary folders go."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def execute(argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """Run a command in a session of its own, which ends with this process.

    Returns:
        Its exit status, None where it was not done in time, and its output.
    """
    libc = ctypes.CDLL(None)
    process = subprocess.Popen(
        list(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, _end(process)
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> str:
    """End a command and all that it started; what it has said."""
    process.send_signal(signal.SIGTERM)
    try:
        output, _ = process.communicate(timeout=ENDING_S)
    except subprocess.TimeoutExpired:
        kill_group(process.pid)
        output, _ = process.communicate()
    kill_group(process.pid)
    return output


def status_text(status: int | None) -> str:
    """How a command ended, for a message."""
    return "it was not done in time and was ended" if status is None else f"exit status {status}"
