"""SIGUSR1 to one random rank of three: all stop at the same step with a checkpoint, and going on loses nothing."""

import json
import os
import random
import re
import signal
import subprocess
import time

import psutil
import pytest

FURTHER = 20  # at most so many steps between a start and its signal
SETTINGS = ["--train.log_every=1", "--train.eval_every_epochs=0", "--checkpoint.every_steps=150"]


def launch(run_dir, steps):
    job = ["hvdtrain", "launch", "-np", "3", "--", "hvdtrain", "run", "digits", "--run-dir", str(run_dir)]
    command = [*job, "--resume", "auto", f"--train.steps={steps}", *SETTINGS]
    with (run_dir.parent / f"{run_dir.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def ranks_below(job):
    """The processes of the ranks, by their own environment: (rank, process)."""
    found = {}
    for process in psutil.Process(job.pid).children(recursive=True):
        try:
            rank = process.environ().get("OMPI_COMM_WORLD_RANK")
            if rank is not None and "run" in process.cmdline():
                found.setdefault(int(rank), process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def records(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def signal_one(job, run_dir, chance):
    """Wait for a random step of the running job, and signal a random rank."""
    target, limit = records(run_dir) + chance.randrange(1, FURTHER), time.monotonic() + 100
    while records(run_dir) < target:
        assert time.monotonic() < limit, "the run did not get anywhere"
        assert job.poll() is None, "the run ended before it was signalled"
        time.sleep(0.002)
    os.kill(ranks_below(job)[chance.randrange(3)].pid, signal.SIGUSR1)


def stops_in_logs(run_dir):
    """For each rank, the steps at which its log says that it stopped."""
    logs = sorted((run_dir / "logs").glob("rank-*.log"))
    return [re.findall(r"stop agreed after step (\d+)", log.read_text()) for log in logs]


@pytest.mark.timeout(1500)
def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_nothing_is_lost(tmp_path, full):
    moments, chance = (30 if full else 4), random.Random(7)
    steps = moments * FURTHER + 40  # more than all stops together can use
    whole, run_dir = tmp_path / "whole", tmp_path / "stopped"
    assert launch(whole, steps).wait(timeout=300) == 0
    for _ in range(moments):
        job = launch(run_dir, steps)
        signal_one(job, run_dir, chance)
        assert job.wait(timeout=60) == 75
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["stopped_by"] in {"SIGUSR1", "another rank's request"}
        assert (run_dir / "checkpoints" / f"step-{summary['steps']:08d}").is_dir()
        assert [stops[-1] for stops in stops_in_logs(run_dir)] == [str(summary["steps"])] * 3
        assert not list((run_dir / "checkpoints").glob(".*"))
    assert launch(run_dir, steps).wait(timeout=300) == 0
    ends = [json.loads((path / "summary.json").read_text())["weights_sha256"] for path in (whole, run_dir)]
    assert ends[0] == ends[1]
