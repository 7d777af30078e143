"""What is installed, as facts: which check is red, and what it says to type."""

from dataclasses import replace

import pytest

from hvdtrain.checks import software
from hvdtrain.checks.software import SOFTWARE_CHECKS, SoftwareFacts

GOOD = SoftwareFacts(
    python="3.11.7",
    environment="venv",
    torch="2.13.0+cpu",
    horovod="0.28.1",
    controllers=("mpi", "gloo"),
    built_for="2.13.0+cpu",
    horovod_mpi="Open MPI 5.0.11",
    mpi4py="4.1.2",
    mpi4py_mpi="Open MPI 5.0.11",
    mpirun="/venv/bin/mpirun",
    mpirun_mpi="Open MPI 5.0.11",
    compiler="/usr/bin/g++",
)
NOTHING = SoftwareFacts(python="3.11.7")


def red(facts):
    """The checks that do not pass: name -> finding."""
    findings = [check(facts) for check in SOFTWARE_CHECKS]
    assert all(finding.remedy for finding in findings if finding.status != "pass")
    return {finding.check: finding for finding in findings if finding.status != "pass"}


def test_a_good_installation_passes():
    assert red(GOOD) == {}


def test_nothing_installed_is_a_red_line_for_each_piece():
    there = red(NOTHING)
    assert set(there) == {"torch", "Horovod", "mpirun", "mpi4py", "compiler"}
    assert {finding.status for finding in there.values()} == {"fail"}


@pytest.mark.parametrize(
    ("changes", "check", "status", "found", "remedy"),
    [
        ({"python": "3.9.2"}, "Python", "fail", "3.9.2", "python3.11 -m venv"),
        ({"torch": "2.5.1", "built_for": None}, "torch", "fail", "2.5.1", "torch=="),
        ({"torch_fault": "ImportError: libgomp"}, "torch", "fail", "libgomp", "torch=="),
        ({"horovod_fault": "undefined symbol"}, "Horovod", "fail", "undefined symbol", "install-horovod"),
        ({"controllers": ("gloo",)}, "Horovod's controllers", "fail", "gloo: it was built without MPI", "install"),
        ({"torch": "2.14.1"}, "Horovod's torch", "fail", "torch 2.14.1 is newer", "install-horovod"),
        ({"torch": "2.12.1"}, "Horovod's torch", "fail", "torch 2.12.1 is another", "torch==2.13.0"),
        ({"mpirun": None, "mpirun_mpi": "", "srun": "/bin/srun"}, "mpirun", "warn", "only /bin/srun", "module load"),
        ({"mpirun_fault": "says: ?", "mpirun_mpi": ""}, "mpirun", "fail", "says: ?", "first on PATH"),
        ({"mpi4py_fault": "libmpi.so"}, "mpi4py", "fail", "libmpi.so", "LD_LIBRARY_PATH"),
        ({"mpirun_mpi": "MPICH (Hydra) 4.2.3"}, "one MPI", "fail", "mpirun: MPICH (Hydra) 4.2.3", "first on PATH"),
        ({"mpi4py_mpi": "Intel MPI 2021.13"}, "one MPI", "fail", "mpi4py: Intel MPI", "first on PATH"),
        ({"mpirun_mpi": "Open MPI 4.1.4"}, "one MPI", "warn", "need not understand", "first on PATH"),
        ({"compiler": None}, "compiler", "warn", "is built already", "g++"),
        ({"compiler": None, "horovod_fault": "x"}, "compiler", "fail", "cannot be built", "g++"),
        ({"headers": False}, "compiler", "warn", "Python.h", "python3-dev"),
        ({"gpu_devices": 2}, "GPUs and NCCL", "warn", "sees none", "CUDA build"),
        ({"gpu_devices": 2, "gpus": 2}, "GPUs and NCCL", "fail", "without NCCL", "--gpu nccl"),
    ],
)
def test_what_is_wrong_is_red_with_its_remedy(changes, check, status, found, remedy):
    finding = red(replace(GOOD, **changes))[check]
    assert finding.status == status
    assert found in finding.found
    assert remedy in finding.remedy


def test_mpich_and_intel_keep_one_abi():
    users = {"horovod_mpi": "MPICH 4.2.3", "mpi4py_mpi": "Intel MPI 2021.13", "mpirun_mpi": "Intel MPI (Hydra) 2021.13"}
    assert "one MPI" not in red(replace(GOOD, **users))


def test_gpus_with_nccl_pass():
    assert software.gpus(replace(GOOD, gpu_devices=4, gpus=4, nccl=True)).found == "4 GPUs, NCCL"
