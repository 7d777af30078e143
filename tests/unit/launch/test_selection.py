"""srun is taken inside a SLURM job whose srun speaks PMIx to an Open MPI, else mpirun; what is missing is named."""

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch.selection import select
from hvdtrain.launch.tool import Tool

OPENMPI = Tool(flavour="openmpi", version=(5, 0, 11), path="/opt/mpirun")
MPICH = Tool(flavour="hydra", version=(4, 2, 3), path="/opt/mpirun")
SRUN = Tool(flavour="slurm", version=(22, 5, 8), path="/usr/bin/srun")
HOROVODRUN = Tool(flavour="horovod", version=(0, 28, 1), path="/opt/horovodrun")
JOB = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}


def chosen(asked, env, *, loads=True, dry_run=False, **tools):
    return select(asked, env, dry_run=dry_run, find=lambda name, _: tools.get(name), pmix=lambda *_: loads)


def test_outside_of_slurm_it_is_mpirun():
    assert chosen("auto", {}, mpirun=OPENMPI, srun=SRUN).tool == OPENMPI


def test_in_a_slurm_job_it_is_srun_where_pmix_loads():
    choice = chosen("auto", JOB, mpirun=OPENMPI, srun=SRUN)
    assert choice.tool == SRUN
    assert "SLURM job 5" in choice.why


def test_without_pmix_it_is_mpirun_inside_the_job():
    choice = chosen("auto", JOB, loads=False, mpirun=OPENMPI, srun=SRUN)
    assert choice.tool == OPENMPI
    assert "cannot load pmix" in choice.why


def test_mpich_starts_by_its_own_launcher():
    assert chosen("auto", JOB, mpirun=MPICH, srun=SRUN).tool == MPICH


def test_what_the_user_says_counts():
    assert chosen("mpirun", JOB, mpirun=OPENMPI, srun=SRUN).tool == OPENMPI
    assert chosen("srun", {}, mpirun=MPICH, srun=SRUN).mpi == MPICH
    assert chosen("horovodrun", {}, mpirun=OPENMPI, horovodrun=HOROVODRUN).tool == HOROVODRUN


@pytest.mark.parametrize("name", ["mpirun", "horovodrun", "srun"])
def test_a_missing_launcher_is_named_and_assumed_only_in_a_dry_run(name):
    with pytest.raises(LaunchError, match=name) as caught:
        chosen(name, {})
    assert caught.value.remedy
    assert chosen(name, {}, dry_run=True).tool.assumed


@pytest.mark.parametrize(
    "env",
    [
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"},
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"},
    ],
)
def test_a_launch_on_every_rank_of_a_job_is_refused(env):
    with pytest.raises(LaunchError, match="start a job") as caught:
        chosen("auto", env, mpirun=OPENMPI)
    assert "itself one of" in caught.value.found


def test_a_single_rank_may_launch():
    assert chosen("auto", {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, mpirun=OPENMPI).tool == OPENMPI
