"""Machines that do not exist, as facts."""

from dataclasses import replace

import pytest

from hvdtrain.install.facts import Facts, Mpi, Python

VENV = Python(
    executable="/venv/bin/python",
    prefix="/venv",
    version="3.11",
    tag="cp311",
    machine="linux_x86_64-glibc2.36",
    site_packages="/venv/lib/python3.11/site-packages",
    include="/usr/include/python3.11",
    has_headers=True,
    kind="venv",
    externally_managed=False,
)
LAPTOP = Facts(
    python=VENV,
    compiler="/usr/bin/g++",
    torch="2.13.0+cpu",
    torch_cuda=None,
    mpi=Mpi(library="Open MPI", version="5.0.11", prefix="", bin="/venv/bin"),
    cuda_home=None,
    cuda=None,
    nccl_home=None,
    nccl=None,
)
CLUSTER = replace(LAPTOP, mpi=Mpi(library="Open MPI", version="4.1.4", prefix="/opt/openmpi", bin="/opt/openmpi/bin"))
GPU_CLUSTER = replace(
    CLUSTER,
    torch="2.14.1",
    torch_cuda="13.0",
    cuda_home="/usr/local/cuda-13.0",
    cuda="13.0",
    nccl_home="/venv/lib/python3.11/site-packages/nvidia/nccl",
    nccl="2.28.9",
)
MACHINES = {"laptop": LAPTOP, "cluster": CLUSTER, "gpu-cluster": GPU_CLUSTER}


@pytest.fixture
def laptop():
    return LAPTOP


@pytest.fixture
def gpu_cluster():
    return GPU_CLUSTER


@pytest.fixture(params=MACHINES)
def machine(request):
    return request.param, MACHINES[request.param]
