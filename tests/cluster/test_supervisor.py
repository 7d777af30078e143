"""Hosts that die or are cut off in mid-training: it goes on with the others, and nothing is left anywhere."""

import json
import signal
import time
from pathlib import Path

import pytest

SLOW = str(Path(__file__).with_name("slow_recipe.py"))
STEPS = 120
LOST_AFTER_S = 10
WITHIN_S = 60


@pytest.fixture
def start(own_cluster, environment, tmp_path):
    """Start a supervised training over two or three hosts; every step is slow enough to be interrupted."""
    started = []

    def start(*options, steps=STEPS, command=(), **variables):
        training = ["hvdtrain", "run", SLOW, "--run-dir", str(tmp_path / "run"), "--train.steps", str(steps)]
        training += ["--checkpoint.every_steps", "10", "--data.ledger", "true"]
        words = ["hvdtrain", "launch", "--no-preflight", "--lost-after", str(LOST_AFTER_S), *options, "--"]
        env = {**environment, "HVDTRAIN_TEST_STEP_S": "0.1", **variables}
        log = (tmp_path / "launch.log").open("w")
        process = own_cluster.start("head", [*words, *(command or training)], env=env, stdout=log, stderr=log)
        log.close()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for_checkpoint(tmp_path, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not list((tmp_path / "run").glob("checkpoints/*")):
        assert time.monotonic() < deadline, (tmp_path / "launch.log").read_text()
        time.sleep(0.1)
    time.sleep(0.5)


def log_of(tmp_path):
    return (tmp_path / "launch.log").read_text()


def wait_for_line(tmp_path, words, limit_s=WITHIN_S):
    began = time.monotonic()
    while words not in log_of(tmp_path):
        assert time.monotonic() - began < limit_s, log_of(tmp_path)
        time.sleep(0.1)
    return time.monotonic() - began


def left_over(cluster):
    hosts = ["head", *cluster.nodes]
    return {name: found for name in hosts if (found := cluster.processes_of(name, "slow_recipe"))}


@pytest.mark.parametrize("how", ["cut", "killed"])
def test_a_host_that_is_lost_is_left_out_and_the_others_finish(own_cluster, start, environment, tmp_path, how):
    launch = start("-np", "4", "-H", "node1:2,node2:2", "--max-restarts", "2", "--min-np", "2")
    wait_for_checkpoint(tmp_path)
    if how == "cut":
        own_cluster.cut("node2")
    else:
        own_cluster.kill_everything_on("node2")
    took_s = wait_for_line(tmp_path, "node2 lost: starting again on 2 ranks of node1")
    assert took_s < WITHIN_S
    assert launch.wait(timeout=90) == 0, log_of(tmp_path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["size"] == 2
    assert summary["steps"] == STEPS
    assert summary["resumed_from"]
    assert summary["samples_seen"] == STEPS * 16
    audit = own_cluster.run("head", ["hvdtrain", "audit", str(tmp_path / "run")], env=environment)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert left_over(own_cluster) == {}, "the ranks on the host that was cut off must have ended themselves"


def test_a_rank_that_dies_starts_the_job_again_and_a_spare_host_takes_over(own_cluster, start, tmp_path):
    launch = start("-np", "2", "-H", "node1:1,node2:1,node3:1", "--max-restarts", "1")
    wait_for_checkpoint(tmp_path)
    killed = own_cluster.run("node2", ["pkill", "-KILL", "-f", "hvdtrain run .*slow_recipe"])
    assert killed.returncode == 0
    wait_for_line(tmp_path, "starting again on 2 ranks of")
    assert launch.wait(timeout=90) == 0, log_of(tmp_path)
    assert "it failed on node2, which is left out: starting again on 2 ranks of node1, node3" in log_of(tmp_path)


def test_without_restarts_the_first_failure_is_printed_last(own_cluster, start, tmp_path):
    program = "import os, sys, time; time.sleep(1); sys.exit(3 if os.environ['OMPI_COMM_WORLD_RANK'] == '3' else 0)"
    launch = start("-np", "4", "-H", "node1:2,node2:2", command=["python3", "-c", program])
    assert launch.wait(timeout=60) == 3
    assert log_of(tmp_path).rstrip().splitlines()[-1].startswith("hvdtrain: the first failure: rank 3")


def test_an_exception_is_printed_last_with_rank_host_step_and_traceback(own_cluster, start, tmp_path):
    launch = start("-np", "4", "-H", "node1:2,node2:2", HVDTRAIN_TEST_FAIL_RANK="3")
    assert launch.wait(timeout=90) not in {0, 2, 75}
    words = log_of(tmp_path).partition("hvdtrain: the first failure: ")[2]
    assert "rank 3 on node2 failed at step 4" in words.splitlines()[0]
    assert words.rstrip().endswith("ArithmeticError: this rank was told to fail")
    assert left_over(own_cluster) == {}


def test_an_interrupt_reaches_the_ranks_who_save_and_stop(own_cluster, start, tmp_path):
    launch = start("-np", "4", "-H", "node1:2,node2:2", "--max-restarts", "3")
    wait_for_checkpoint(tmp_path)
    inside = own_cluster.run("head", ["pgrep", "-f", "bin/hvdtrain launch"]).stdout.split()
    own_cluster.run("head", ["kill", f"-{signal.SIGINT.value}", *inside])
    assert launch.wait(timeout=60) == 75, log_of(tmp_path)
    assert "starting again" not in log_of(tmp_path)
    assert left_over(own_cluster) == {}


def test_the_launching_process_is_killed_and_nothing_is_left(own_cluster, start, tmp_path):
    start("-np", "4", "-H", "node1:2,node2:2")
    wait_for_checkpoint(tmp_path)
    own_cluster.run("head", ["pkill", "-KILL", "-f", "bin/hvdtrain launch"])
    deadline = time.monotonic() + LOST_AFTER_S + 10
    while left_over(own_cluster) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left_over(own_cluster) == {}
