"""Jobs of a real SLURM: submitted, stopped before their limit, requeued, and always failing. No person helps them.

`scontrol update StartTime=now` only spares the two minutes for which SLURM holds a requeued job back.
"""

import json
import re
import time
from pathlib import Path

import pytest

SLOW = str(Path(__file__).with_name("slow_recipe.py"))
STEPS = 160
STEP_GONE_S = 6  # the last attempt's PMIx server takes some seconds to go, and the next one needs its name


@pytest.fixture
def submit(cluster, environment, tmp_path):
    """Write a batch script with `hvdtrain sbatch`, submit it, and return the number of the job."""

    def submit(*options, command, **variables):
        env = {**environment, **variables}
        shown = ["hvdtrain", "sbatch", *options, "--output", str(tmp_path / "job.log"), "--", *command]
        text = cluster.run("head", shown, env=env)
        assert text.returncode == 0, text.stderr
        (tmp_path / "job.sbatch").write_text(text.stdout)
        done = cluster.run("head", ["sbatch", "--parsable", str(tmp_path / "job.sbatch")], env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return submit


def state_of(cluster, job):
    shown = cluster.run("head", ["scontrol", "show", "job", "--oneliner", job]).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def wait_for(cluster, job, reached, limit_s):
    """Until `reached(state)`; a job that SLURM holds back after a requeue is let go at once."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        state = state_of(cluster, job)
        if reached(state):
            return state
        if state.get("JobState") == "PENDING" and state.get("Reason") == "BeginTime":
            time.sleep(STEP_GONE_S)
            cluster.run("head", ["scontrol", "update", f"JobId={job}", "StartTime=now"])
        time.sleep(0.3)
    raise TimeoutError(f"job {job} after {limit_s} s: {state_of(cluster, job)}")


def ended(state):
    return state.get("JobState") in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


def summary(directory):
    return json.loads((directory / "summary.json").read_text())


def training(directory):
    return [
        *["hvdtrain", "run", SLOW, "--run-dir", str(directory), "--train.steps", str(STEPS)],
        *["--checkpoint.every_steps", "10"],
    ]


@pytest.fixture(scope="module")
def uninterrupted(cluster, tmp_path_factory):
    """The digest of the weights that the same training has when nothing disturbs it, at the same size."""
    import conftest

    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    command = ["hvdtrain", "launch", "--no-preflight", "--launcher", "srun", "-np", "2", "-H", "node1:1,node2:1", "--"]
    done = cluster.run("head", [*command, *training(directory)], env=conftest.user_environment(), limit_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return summary(directory)["weights_sha256"]


def attempts(tmp_path):
    return re.findall(r"attempt (\d+) of job", (tmp_path / "job.log").read_text())


@pytest.mark.timeout(600)
def test_stopped_before_the_limit_it_resumes_by_itself(cluster, submit, tmp_path, uninterrupted):
    """A limit of two minutes and a signal 80 s before it: no attempt has the time for all steps."""
    options = ["-N", "2", "--time", "2", "--lead", "80", "--requeue", "--max-requeues", "9"]
    job = submit(*options, command=training(tmp_path / "run"), HVDTRAIN_TEST_STEP_S="0.3")
    state = wait_for(cluster, job, ended, limit_s=500)
    log = (tmp_path / "job.log").read_text()
    assert state["JobState"] == "COMPLETED", log
    assert len(attempts(tmp_path)) > 1, "it was never stopped"
    assert "ended with status 75" in log
    assert summary(tmp_path / "run")["resumed_from"]
    assert summary(tmp_path / "run")["weights_sha256"] == uninterrupted


def test_requeued_by_scontrol_it_resumes_by_itself(cluster, submit, tmp_path, uninterrupted):
    job = submit("-N", "2", "--requeue", command=training(tmp_path / "run"), HVDTRAIN_TEST_STEP_S="0.12")
    wait_for(cluster, job, lambda state: any((tmp_path / "run").glob("checkpoints/*")), limit_s=90)
    assert cluster.run("head", ["scontrol", "requeue", job]).returncode == 0
    wait_for(cluster, job, lambda state: state.get("Restarts") == "1" and state["JobState"] == "RUNNING", limit_s=90)
    state = wait_for(cluster, job, ended, limit_s=150)
    assert state["JobState"] == "COMPLETED", (tmp_path / "job.log").read_text()
    assert attempts(tmp_path) == ["0", "1"]
    assert summary(tmp_path / "run")["resumed_from"]
    assert summary(tmp_path / "run")["weights_sha256"] == uninterrupted


def test_a_job_that_always_fails_stops_after_the_cap(cluster, submit, tmp_path):
    job = submit("--requeue", "--max-requeues", "2", command=["sh", "-c", "exit 3"])
    state = wait_for(cluster, job, ended, limit_s=90)
    log = (tmp_path / "job.log").read_text()
    assert state["JobState"] == "FAILED", log
    assert attempts(tmp_path) == ["0", "1", "2"]
    assert log.count("ended with status 3") == 3
    assert "giving up" in log


def test_a_cancelled_job_stays_cancelled(cluster, submit, tmp_path):
    job = submit("--requeue", command=training(tmp_path / "run"), HVDTRAIN_TEST_STEP_S="0.12")
    wait_for(cluster, job, lambda state: any((tmp_path / "run").glob("checkpoints/*")), limit_s=60)
    cluster.run("head", ["scancel", job])
    state = wait_for(cluster, job, ended, limit_s=60)
    assert state["JobState"] == "CANCELLED"
    time.sleep(3)
    assert state_of(cluster, job)["JobState"] == "CANCELLED"
    assert attempts(tmp_path) == ["0"]


def test_srun_without_pmi_is_refused_with_the_line_to_type(cluster, environment, tmp_path):
    began = time.monotonic()
    command = [
        "srun",
        "--mpi=none",
        "-N",
        "2",
        "-n",
        "4",
        "hvdtrain",
        "run",
        "digits",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    done = cluster.run("head", command, env=environment, limit_s=40)
    assert time.monotonic() - began < 20
    assert done.returncode == 2
    assert "srun --mpi=pmix" in done.stderr
    assert not (tmp_path / "run").exists()
