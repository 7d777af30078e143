"""How sides are started and chosen; nothing is launched here but Python."""

import os
import select
import subprocess
import sys

import pytest

from hvdtrain.diagnostics.bench import allreduce, jobs, scaling, step
from hvdtrain.errors import HvdtrainError

RANK = "python -m hvdtrain.diagnostics.bench.ranks.step"


def test_each_side_has_the_launcher_and_flags_of_its_user():
    sides = {side: jobs.shown(job) for side, job in step.fixed_sides({}, 2).items()}
    assert sides == {
        "no_communication": f"hvdtrain launch -np 2 -- {RANK}",
        "hvdtrain": f"hvdtrain launch -np 2 -- {RANK}",
        "horovod_plain": f"mpirun -np 2 {RANK}",
        "ddp_gloo": f"torchrun --standalone --nproc-per-node 2 {RANK}",
        "hvdtrain_allreduce": f"hvdtrain launch -np 2 -- {RANK}",
    }
    assert step.fixed_sides({}, 2)["hvdtrain"].task["strategy"] == "auto"


def test_grids_hold_the_defaults_of_those_that_are_tuned():
    assert ((), {"HOROVOD_CYCLE_TIME": "1", "HOROVOD_FUSION_THRESHOLD": str(128 * 2**20)}) in step.horovod_grid()
    assert {"bucket_cap_mb": 25, "gradient_as_bucket_view": False} in step.ddp_grid()
    tuned = step.tuned_sides({"models": ["cnn"]}, 2)
    assert [len(tuned[side]) for side in tuned] == [18, 6]
    assert len({jobs.shown(job) for job in tuned["horovod_tuned"]}) == 18


def test_more_ranks_than_cores_have_to_be_allowed():
    cores = len(os.sched_getaffinity(0))
    assert "--oversubscribe" in jobs.mpirun("step", {}, size=cores + 1).launcher
    assert "--oversubscribe" not in jobs.mpirun("step", {}, size=cores).launcher


def test_each_model_gets_the_setting_that_was_best_on_it():
    candidates = step.tuned_sides({"models": ["mlp", "cnn", "narrow"]}, 2)["ddp_gloo_tuned"][:3]
    tried = [
        {"mlp": 9.0, "cnn": 5.0, "narrow": 2.0},
        {"mlp": 8.0, "cnn": 6.0, "narrow": 1.0},
        {"mlp": 9.0, "cnn": 6.0, "narrow": 3.0},
    ]
    chosen = step.assign(candidates, tried)
    assert [job.task["models"] for job in chosen] == [["cnn"], ["mlp", "narrow"]]
    assert [job.task["ddp"] for job in chosen] == [candidates[0].task["ddp"], candidates[1].task["ddp"]]


def test_names_of_measured_pairs_are_taken_apart():
    assert allreduce.by_size({"64 gloo": {"gloo": [1.0]}, "64 mpi": {"mpi": [2.0]}, "65536 mpi": {"mpi": [3.0]}}) == {
        "64B": {"gloo": [1.0], "mpi": [2.0]},
        "64KB": {"mpi": [3.0]},
    }
    assert scaling.by_size({"1 hvdtrain": [1.0], "2 hvdtrain": [2.0]}) == {
        "1": {"hvdtrain": [1.0]},
        "2": {"hvdtrain": [2.0]},
    }


def test_a_command_that_does_not_end_is_ended_with_what_it_started():
    status, output = jobs.execute(
        [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"], env=os.environ, timeout_s=1.0
    )
    assert (status, output) == (None, "begun\n")


OUTER = """\
import os, sys
from hvdtrain.diagnostics.bench.jobs import execute
execute([sys.executable, "-c", *sys.argv[1:]], env=os.environ, timeout_s=60)
"""
INNER = """\
import os, sys, time
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
time.sleep(60)
"""


def test_whoever_kills_the_benchmark_ends_what_it_has_started(tmp_path):
    os.mkfifo(tmp_path / "pid")
    bench = subprocess.Popen([sys.executable, "-c", OUTER, INNER, str(tmp_path / "pid")])
    started = os.pidfd_open(int((tmp_path / "pid").read_text()))
    bench.kill()
    bench.wait()
    assert select.select([started], [], [], 20)[0], "it is still there"
    os.close(started)


def test_a_job_that_fails_says_what_it_said():
    job = jobs.Job(launcher=(sys.executable, "-c", "import sys; sys.exit('no luck')"), program="step", task={}, size=1)
    with pytest.raises(HvdtrainError, match="exit status 1:\nno luck"):
        jobs.run(job, env=os.environ)
