"""Each wrong launch, as the facts by which it is known, and the cause that is named."""

import pytest

from hvdtrain.checks import LAUNCH_CHECKS, LaunchFacts, guard
from hvdtrain.errors import LaunchError

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
BY_MPIRUN = OPEN_MPI | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "job"}
BY_SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "5"}
IN_BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "5"}
BY_HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2"}
BY_HOROVODRUN = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}


@pytest.mark.parametrize(
    ("facts", "cause", "remedy"),
    [
        (LaunchFacts(env=OPEN_MPI), "no mpirun behind it", "mpirun -np 4"),
        (
            LaunchFacts(env=BY_MPIRUN, size=1),
            "another MPI than the one Horovod",
            "hvdtrain launch -np 4",
        ),
        (LaunchFacts(env=BY_SRUN), "srun without PMIx", "srun --mpi=pmix"),
        (LaunchFacts(env=BY_SRUN | {"PMIX_RANK": "1"}, size=1), "do not speak the same", "srun --mpi=pmix"),
        (LaunchFacts(env=IN_BATCH_SCRIPT), "started by itself in the batch script", "srun --mpi=pmix"),
        (LaunchFacts(env=BY_HYDRA, size=1), "MPICH or Intel MPI", "hvdtrain launch -np 2"),
        (LaunchFacts(env=BY_HOROVODRUN, size=1), "left over from another job", "install-horovod"),
        (LaunchFacts(env={"RANK": "0", "WORLD_SIZE": "2"}, size=1), "torchrun", "hvdtrain launch -np 2"),
        (LaunchFacts(env=BY_MPIRUN, size=4, mpi_size=1), "different MPI libraries", "install-horovod"),
    ],
)
def test_a_wrong_launch_is_refused_with_its_cause(facts, cause, remedy):
    with pytest.raises(LaunchError) as refused:
        guard(facts)
    assert cause in refused.value.found
    assert remedy in refused.value.remedy
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    "facts",
    [
        LaunchFacts(env={}),
        LaunchFacts(env={}, size=1, mpi_size=1),
        LaunchFacts(env=BY_MPIRUN),
        LaunchFacts(env=BY_MPIRUN, size=4, mpi_size=4),
        LaunchFacts(env=BY_SRUN | {"PMIX_RANK": "1"}, size=4),
        LaunchFacts(env=IN_BATCH_SCRIPT | BY_MPIRUN, size=4, mpi_size=4),
        LaunchFacts(env=IN_BATCH_SCRIPT | {"SLURM_NTASKS": "1"}, size=1),
        LaunchFacts(env=BY_HOROVODRUN, size=2),
        LaunchFacts(env={"PMIX_RANK": "0"}, size=1),
    ],
)
def test_a_right_launch_passes(facts):
    guard(facts)
    assert all(check(facts).status == "pass" for check in LAUNCH_CHECKS)


def test_the_message_names_host_and_variable():
    with pytest.raises(LaunchError, match=r"OMPI_COMM_WORLD_SIZE=4[\s\S]*gpu07"):
        guard(LaunchFacts(env=BY_MPIRUN, size=1, host="gpu07"))
