"""What stands in the way of an installation, all of it at once, each with the line to type.

check_environment(facts)              # InstallError: an externally managed Python, no torch, ...
check_build(facts, gpu="nccl")        # InstallError: no compiler, no Python.h, no nvcc, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import InstallError
from hvdtrain.install.facts import Facts, Python
from hvdtrain.install.target import Target
from hvdtrain.versions import TESTED_TORCH

INSTALL = "install Horovod"
BUILD = "build Horovod"


def environment_faults(facts: Facts) -> list[InstallError]:
    """Why nothing can be installed here, whether from a wheel or by building one."""
    if environment := _environment_fault(facts.python):
        return [environment]  # its remedy brings a torch
    if facts.torch is None:
        return [
            InstallError(
                INSTALL,
                found=f"no torch in {facts.python.prefix}, and Horovod is built for one version of it",
                remedy=f"{facts.python.executable} -m pip install torch=={TESTED_TORCH}",
            )
        ]
    return []


def _environment_fault(python: Python) -> InstallError | None:
    if python.kind:
        return None
    what = "is managed by the system (PEP 668)" if python.externally_managed else "is not a virtual environment"
    return InstallError(
        INSTALL,
        found=f"the Python of {python.prefix} {what}, and other programs may depend on it",
        remedy=(
            f"scripts/setup, or in a checkout: {python.executable} -m venv .venv"
            f" && .venv/bin/pip install '.[train]' torch=={TESTED_TORCH} && .venv/bin/hvdtrain install-horovod"
        ),
    )


def build_faults(facts: Facts, *, gpu: str) -> list[InstallError]:
    """Why no wheel can be built here."""
    found = []
    if facts.compiler is None:
        found.append(
            InstallError(
                BUILD,
                found="no C++ compiler (g++, or the one that CXX names) on PATH",
                remedy="apt-get install g++     (or: module load gcc; or CXX=/path/to/g++)",
            )
        )
    if not facts.python.has_headers:
        version = facts.python.version
        found.append(
            InstallError(
                BUILD,
                found=f"no Python.h in {facts.python.include}",
                remedy=f"apt-get install python{version}-dev     (dnf: python{version}-devel; or a Python from source)",
            )
        )
    return found + (_gpu_faults(facts) if gpu == "nccl" else [])


def _gpu_faults(facts: Facts) -> list[InstallError]:
    asked, found = f"{BUILD} with NCCL", []
    major = (facts.torch_cuda or "13").split(".")[0]
    if facts.torch and facts.torch_cuda is None:
        found.append(
            InstallError(
                asked,
                found=f"torch {facts.torch}, which is built for the CPU alone",
                remedy=f"{facts.python.executable} -m pip install torch=={TESTED_TORCH} from the index of your CUDA",
            )
        )
    if facts.cuda_home is None:
        found.append(
            InstallError(
                asked,
                found="no nvcc on PATH, in $CUDA_HOME or in /usr/local/cuda",
                remedy=f"module load cuda/{facts.torch_cuda or 'VERSION'}     (or: export CUDA_HOME=/path/to/toolkit)",
            )
        )
    elif facts.torch_cuda and (facts.cuda or "").split(".")[0] != major:
        found.append(
            InstallError(
                asked,
                found=f"CUDA {facts.cuda} in {facts.cuda_home}, and a torch that was built for CUDA {facts.torch_cuda}",
                remedy=f"export CUDA_HOME=/path/to/cuda-{facts.torch_cuda}",
            )
        )
    if facts.nccl_home is None:
        found.append(
            InstallError(
                asked,
                found="neither an nvidia-nccl package beside torch nor $NCCL_HOME",
                remedy=f"{facts.python.executable} -m pip install nvidia-nccl-cu{major}",
            )
        )
    return found


def no_fitting_wheel(folder: Path, target: Target, there: Sequence[Target]) -> InstallError | None:
    """Why the wheels that were brought along are of no use here; None when there are none."""
    if not there:
        return None
    nearest = min(there, key=lambda other: len(other.differences(target)))
    return InstallError(
        f"install Horovod from {folder}",
        found=f"{len(there)} built for something else; the nearest: {'; '.join(nearest.differences(target))}",
        remedy=f"where a compiler and the same software are: hvdtrain install-horovod --wheel-dir {folder}",
    )


def refuse(faults: Sequence[InstallError]) -> None:
    """Raise one fault as it is, several as one message.

    Raises:
        InstallError: there was at least one.
    """
    if len(faults) == 1:
        raise faults[0]
    if faults:
        lines = [f"{fault.found}\n    do:  {fault.remedy}" for fault in faults]
        raise InstallError(faults[0].asked, found="\n  - ".join([f"{len(faults)} things are missing", *lines]))
