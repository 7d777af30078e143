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
RENDEZVOUS = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "41289"}
BY_GLOO = BY_HOROVODRUN | RENDEZVOUS | {"HOROVOD_CONTROLLER": "gloo"}
IN_SALLOC_SHELL = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "3"}


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
        (LaunchFacts(env=IN_SALLOC_SHELL), "started by itself in the shell of salloc", "srun --mpi=pmix"),
        (LaunchFacts(env=BY_MPIRUN, controllers=("gloo",)), "without MPI (it has gloo)", "install-horovod"),
        (LaunchFacts(env=BY_HYDRA, controllers=()), "without MPI (it has nothing)", "install-horovod"),
        (
            LaunchFacts(env=BY_HYDRA, horovod_mpi="Open MPI"),
            "Horovod on this host uses Open MPI",
            "first on PATH, then",
        ),
        (
            LaunchFacts(env=BY_HYDRA, horovod_mpi="Open MPI", mpi_bin="/opt/openmpi/bin"),
            "uses Open MPI",
            "export PATH=/opt/openmpi/bin:$PATH, then: hvdtrain launch -np 2",
        ),
        (LaunchFacts(env=BY_HYDRA, size=1, mpi_bin="/opt/openmpi/bin"), "another MPI", "export PATH=/opt/openmpi/bin:"),
        (LaunchFacts(env=BY_MPIRUN, horovod_mpi="MPICH"), "Horovod on this host uses MPICH", "launch -np 4"),
        (LaunchFacts(env=BY_HYDRA, mpi_library="Open MPI v5.0.11"), "mpi4py on this host uses Open MPI", "mpi4py"),
        (LaunchFacts(env=BY_MPIRUN, mpi_library="Intel(R) MPI Library 2021.13"), "mpi4py on this host uses", "mpi4py"),
        (
            LaunchFacts(env=BY_MPIRUN, mpi_files=("/a/libmpi.so.40", "/b/libmpi.so.12")),
            "two are loaded on this host, one by Horovod and one by mpi4py: /a/libmpi.so.40, /b/libmpi.so.12",
            "install-horovod",
        ),
        (LaunchFacts(env=BY_MPIRUN | RENDEZVOUS), "HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1", "unset ${!HOROVOD_GLOO_*}"),
        (LaunchFacts(env=BY_MPIRUN | BY_HOROVODRUN), "left over from a horovodrun --gloo", "HOROVOD_RANK"),
        (LaunchFacts(env=BY_MPIRUN | {"HOROVOD_CONTROLLER": "gloo"}), "cannot serve", "unset HOROVOD_CONTROLLER"),
        (LaunchFacts(env=BY_GLOO, rendezvous_answers=False), "nobody answers at 127.0.0.1:41289", "unset"),
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
        LaunchFacts(env=BY_GLOO, size=2, rendezvous_answers=True, controllers=("gloo",)),
        LaunchFacts(env=BY_GLOO | IN_BATCH_SCRIPT, size=2, rendezvous_answers=True),
        LaunchFacts(env=BY_MPIRUN, controllers=("mpi", "gloo"), horovod_mpi="Open MPI"),
        LaunchFacts(env=BY_MPIRUN, mpi_library="Open MPI v5.0.11", mpi_files=("/a/libmpi.so.40",)),
        LaunchFacts(env=BY_HYDRA, controllers=("mpi",), horovod_mpi="MPICH", mpi_library="Intel(R) MPI Library 2021"),
        LaunchFacts(env=BY_HYDRA | {"PMI_SIZE": "1"}, horovod_mpi="Open MPI"),  # a shell inside another job
        LaunchFacts(env={}, controllers=("gloo",)),
        LaunchFacts(env=IN_SALLOC_SHELL | BY_MPIRUN, size=4),
        LaunchFacts(env=BY_SRUN | {"PMIX_RANK": "1"}, horovod_mpi="MPICH", size=4),
    ],
)
def test_a_right_launch_passes(facts):
    guard(facts)
    assert all(check(facts).status == "pass" for check in LAUNCH_CHECKS)


def test_the_message_names_host_and_variable():
    with pytest.raises(LaunchError, match=r"OMPI_COMM_WORLD_SIZE=4[\s\S]*gpu07"):
        guard(LaunchFacts(env=BY_MPIRUN, size=1, host="gpu07"))


@pytest.mark.parametrize("slots", [{"PBS_JOBID": "7.head", "PBS_NP": "8"}, {"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "8"}])
def test_slots_of_other_batch_systems_may_be_meant_for_threads(slots):
    (warning,) = guard(LaunchFacts(env=slots))
    assert warning.status == "warn"
    assert "=8" in warning.found
    assert "hvdtrain launch" in warning.remedy


def test_every_failure_has_a_text_of_its_own():
    wrong = [mark for mark in test_a_wrong_launch_is_refused_with_its_cause.pytestmark if mark.name == "parametrize"]
    firsts = set()
    for facts, _, _ in wrong[0].args[1]:
        finding = next(found for check in LAUNCH_CHECKS if (found := check(facts)).status == "fail")
        assert finding.asked
        assert finding.found
        assert finding.remedy
        firsts.add(finding.check)
    assert firsts == {check(LaunchFacts(env={})).check for check in LAUNCH_CHECKS}  # each check has a case
