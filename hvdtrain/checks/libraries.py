"""Whether launcher, Horovod and mpi4py are of one MPI, judged by what is loaded into this process.

horovod_has_mpi(facts).found              # "the Horovod on gpu01 was built without MPI (it has gloo)"
launcher_of_horovods_mpi(facts).found     # "Horovod on gpu01 uses Open MPI: it cannot join what another MPI's ..."
family_of("Intel MPI 2021.13")            # "MPICH", whose ABI it keeps
"""

from __future__ import annotations

from hvdtrain.checks.finding import Finding, failed, passed
from hvdtrain.checks.launchfacts import FAMILIES, LaunchFacts, asked_of, fitting


def horovod_has_mpi(facts: LaunchFacts) -> Finding:
    """A Horovod without MPI cannot see that mpirun or srun started it: N copies of rank 0 of 1."""
    name, promise = "Horovod was built with MPI", facts.crowd
    by_mpi = promise is not None and (promise.launcher in FAMILIES or promise.launcher == "srun")
    if promise is None or not by_mpi or facts.controllers is None or "mpi" in facts.controllers:
        return passed(name)
    return failed(
        name,
        asked=f"{asked_of(promise)}, started by {promise.launcher}",
        found=f"the Horovod on {facts.host} was built without MPI (it has {', '.join(facts.controllers) or 'nothing'})",
        remedy=f"hvdtrain install-horovod   (until then: horovodrun --gloo -np {promise.size} ...)",
    )


def _another_family(facts: LaunchFacts, name: str, family: str, whose: str, remedy: str) -> Finding:
    promise = facts.crowd
    expected = FAMILIES.get(promise.launcher) if promise else None
    if promise is None or not family or expected in {None, family}:
        return passed(name)
    by = promise.launcher if expected == "Open MPI" else f"{promise.launcher}, or srun --mpi=pmi2"
    return failed(
        name,
        asked=f"{asked_of(promise)}, set by {by}",
        found=f"{whose} on {facts.host} uses {family}: it cannot join what another MPI's launcher started",
        remedy=remedy.format(size=promise.size),
    )


def launcher_of_horovods_mpi(facts: LaunchFacts) -> Finding:
    """Another MPI's mpirun started a Horovod: its ranks would not find each other."""
    name = "mpirun is of Horovod's MPI"
    remedy = fitting(facts)
    return _another_family(facts, name, facts.horovod_mpi, "Horovod", remedy)


def family_of(library: str) -> str:
    """Whose MPI a description is of, as far as launchers care; empty when unknown.

    >>> family_of("Open MPI v5.0.11, package: ...")
    'Open MPI'
    """
    if library.startswith("Open MPI"):
        return "Open MPI"
    return "MPICH" if library.startswith(("MPICH", "Intel(R) MPI", "Intel MPI")) else ""


def launcher_of_mpi4pys_mpi(facts: LaunchFacts) -> Finding:
    """The mpirun fits Horovod, and mpi4py found another MPI."""
    name = "mpirun is of mpi4py's MPI"
    remedy = (
        "python -m pip install --force-reinstall --no-cache-dir --no-binary=mpi4py mpi4py   (that MPI first on PATH)"
    )
    return _another_family(facts, name, family_of(facts.mpi_library), "mpi4py", remedy)


def horovod_and_mpi_agree(facts: LaunchFacts) -> Finding:
    """Horovod and mpi4py must be in the same MPI world, with one MPI library in the process."""
    name, remedy = "one MPI world", "hvdtrain install-horovod   (it builds for the MPI that mpi4py finds)"
    if facts.size is not None and facts.mpi_size is not None and facts.size != facts.mpi_size:
        loaded = f" ({', '.join(facts.mpi_files)})" if len(facts.mpi_files) > 1 else ""
        return failed(
            name,
            asked=f"one job of {facts.mpi_size} ranks, as MPI sees it through mpi4py ({facts.mpi_library})",
            found=f"Horovod reports size {facts.size} on {facts.host}: mpi4py and Horovod use different MPI "
            f"libraries{loaded}",
            remedy=remedy,
        )
    if len(facts.mpi_files) > 1:
        return failed(
            name,
            asked="use one MPI",
            found=f"two are loaded on {facts.host}, one by Horovod and one by mpi4py: {', '.join(facts.mpi_files)}",
            remedy=remedy,
        )
    return passed(name)
