"""Starts a job that is going to fail, watches its processes from outside, and tells how it ended and what is left.

job = run_faulty(["mpirun", ...], run_dir=tmp_path / "run", fault=("kill", "forward", 1))
job.status, job.fired, job.gone_s, job.orphans, job.failure, job.stderr
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

RECIPE = Path(__file__).with_name("faulty_recipe.py")
TAG = "HVDTRAIN_FAULT_TAG"
MPIRUN = ["mpirun", "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]


@dataclass
class Job:
    """What became of a job; `gone_s` is the time from the fault until the last of its processes was gone."""

    status: int
    fired: bool
    gone_s: float
    orphans: list
    failure: dict | None
    stderr: str
    run_dir: Path

    def log(self, rank):
        return (self.run_dir / "logs" / f"rank-{rank:04d}.log").read_text()

    def records(self):
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]


def tagged(tag):
    """The processes that have this tag in their environment and are not dead."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            there = f"{TAG}={tag}".encode() in (directory / "environ").read_bytes().split(b"\0")
            state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if there and state != "Z":
            found.append((int(directory.name), (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def own_environment():
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "HOROVOD_"))}
    root = ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"]
    return keep | {name + end: "1" for name in root for end in ("", "_CONFIRM")} | {"OMP_NUM_THREADS": "1"}


def run_faulty(launcher, *options, run_dir, fault=None, limit_s=120.0, program=None):
    """Run a job and wait until none of its processes is left, or `limit_s` is over; then kill what is left."""
    tag, mark = uuid.uuid4().hex, run_dir.with_name(run_dir.name + "-fired")
    env = own_environment() | {TAG: tag}
    if fault:
        env["HVDTRAIN_FAULT"] = ":".join(map(str, [*fault, mark]))
    run = [sys.executable, "-m", "hvdtrain", "run", str(RECIPE), "--run-dir", str(run_dir), *options]
    stderr = run_dir.with_name(run_dir.name + "-stderr")
    with stderr.open("w") as stream:
        process = subprocess.Popen(
            [*launcher, *(program or run)], env=env, stdout=stream, stderr=stream, start_new_session=True
        )
        began = time.monotonic()
        while time.monotonic() - began < limit_s and process.poll() is None:
            time.sleep(0.02)
    ended = time.time()
    status = process.returncode
    orphans = tagged(tag)
    while orphans and fault and mark.exists() and time.time() - float(mark.read_text()) < limit_s / 4:
        time.sleep(0.05)
        ended, orphans = time.time(), tagged(tag)
    for pid, _ in orphans:
        os.kill(pid, signal.SIGKILL)
    process.wait(30)
    fired = mark.exists()
    failure = run_dir / "failure.json"
    return Job(
        status=status if status is not None else "timeout",
        fired=fired,
        gone_s=ended - float(mark.read_text()) if fired else 0.0,
        orphans=orphans,
        failure=json.loads(failure.read_text()) if failure.exists() else None,
        stderr=stderr.read_text(),
        run_dir=run_dir,
    )
