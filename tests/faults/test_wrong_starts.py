"""Starts that are really wrong end with their cause, at once, instead of as N copies of rank 0 of 1 or as a hang."""

import os
import subprocess
import sys

import pytest

from hvdtrain.install.proof import OPEN_MPI_FLAGS, environment

LIMIT_S = 120
PROGRAM = """
import hvdtrain
with hvdtrain.init() as run:
    run.log.info("started %d ranks", run.topology.size)
"""


def run(argv, **variables):
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env |= environment(user_id=os.getuid()) | variables
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def mpirun(*contexts, **variables):
    """One rank for each context, a list of words that begin the rank's command."""
    words = []
    for context in contexts:
        words += [":"] if words else []
        words += ["-np", "1", *context]
    return run(["mpirun", *OPEN_MPI_FLAGS, *words], **variables)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_ranks_with_different_scripts_are_refused_by_all(script, tmp_path):
    (tmp_path / "old").mkdir()
    other = tmp_path / "old" / "train.py"
    other.write_text(PROGRAM + "# an older copy\n")
    done = mpirun([sys.executable, script], [sys.executable, script], [sys.executable, other])
    assert done.returncode != 0
    assert "rank 2 on " in done.stderr
    assert "script train.py" in done.stderr
    assert "the other 2 ranks: train.py" in done.stderr
    assert "copy the script to every host" in done.stderr
    assert "started" not in done.stderr


def test_a_variable_of_the_minority_is_a_warning_of_root(script):
    command = [sys.executable, script]
    done = mpirun(command, command, ["-x", "NCCL_DEBUG=INFO", *command])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("$NCCL_DEBUG INFO, the other 2 ranks: none") == 1
    assert "started 3 ranks" in done.stderr


def test_alike_ranks_are_started_without_a_word(script):
    done = mpirun([sys.executable, script], [sys.executable, script])
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "started 2 ranks" in done.stderr


def test_variables_of_a_horovodrun_that_has_ended(script):
    left = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
    done = run([sys.executable, script], **left, HOROVOD_GLOO_RENDEZVOUS_PORT="1")
    assert done.returncode != 0
    assert "nobody answers at 127.0.0.1:1" in done.stderr
    assert "unset ${!HOROVOD_GLOO_*}" in done.stderr


def test_gloo_variables_under_mpirun(script):
    left = ["-x", "HOROVOD_CONTROLLER=gloo"]
    done = mpirun([*left, sys.executable, script], [*left, sys.executable, script])
    assert done.returncode != 0
    assert "HOROVOD_CONTROLLER=gloo" in done.stderr
    assert "unset HOROVOD_CONTROLLER" in done.stderr


def test_the_mpiexec_of_another_mpi(script):
    """What MPICH's mpiexec gives its first rank, and Open MPI's Horovod does not understand."""
    done = run([sys.executable, script], PMI_RANK="0", PMI_SIZE="2", PMI_FD="9")
    assert done.returncode != 0
    assert "uses Open MPI: it cannot join what another MPI's launcher started" in done.stderr
    assert f"export PATH={sys.prefix}/bin:$PATH" in done.stderr


def test_an_allocation_without_a_launcher(script):
    done = run([sys.executable, script], SLURM_JOB_ID="7", SLURM_NTASKS="2", SLURM_PROCID="0")
    assert done.returncode != 0
    assert "nothing started the others" in done.stderr
    assert "srun --mpi=pmix" in done.stderr
