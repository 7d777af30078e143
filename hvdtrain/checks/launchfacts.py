"""What is known about the start of a process, and the names that checks on it share.

facts = LaunchFacts(env=os.environ, host="gpu01")
facts.promise                   # what the innermost launcher's variables promise, or None
facts.crowd                     # the same, where it is one of several ranks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.topology import Promise, detect

OPEN_MPI, HYDRA = "mpirun (Open MPI)", "mpiexec (Hydra: MPICH or Intel MPI)"
FAMILIES = {OPEN_MPI: "Open MPI", HYDRA: "MPICH"}  # the MPI whose ranks a launcher can join


@dataclass(frozen=True, kw_only=True)
class LaunchFacts:
    """What is known about the start of this process; None or empty where it is not known (yet).

    Attributes:
        env: the environment the process was started with.
        host: the name of this host.
        size: what Horovod reports.
        mpi_size: what MPI reports through mpi4py; None under Gloo.
        controller: "mpi" or "gloo", the one that Horovod uses.
        controllers: those that Horovod was built with.
        mpi_library: the first line of MPI's own description of itself, as mpi4py reports it.
        horovod_mpi: whose MPI Horovod was linked with: "Open MPI", or "MPICH" for all that share its ABI.
        mpi_bin: the folder of the mpirun that fits Horovod.
        mpi_files: the MPI libraries that are loaded in this process.
        rendezvous_answers: whether anybody listens where HOROVOD_GLOO_RENDEZVOUS_* point to.
    """

    env: Mapping[str, str]
    host: str = "this host"
    size: int | None = None
    mpi_size: int | None = None
    controller: str | None = None
    controllers: tuple[str, ...] | None = None
    mpi_library: str = "unknown"
    horovod_mpi: str = ""
    mpi_bin: str = ""
    mpi_files: tuple[str, ...] = ()
    rendezvous_answers: bool | None = None

    @property
    def promise(self) -> Promise | None:
        """What the innermost launcher's variables promise."""
        return detect(self.env)

    @property
    def crowd(self) -> Promise | None:
        """The promise, where it is one of several ranks."""
        promise = self.promise
        return promise if promise and (promise.size or 1) > 1 else None


def asked_of(promise: Promise) -> str:
    """What was asked for, as far as the variables say."""
    return f"train on {promise.size} ranks ({promise.source})"


def fitting(facts: LaunchFacts) -> str:
    """How to start with the mpirun of Horovod's own MPI; the number of ranks stands as ``{size}``."""
    first = f"export PATH={facts.mpi_bin}:$PATH" if facts.mpi_bin else "put the mpirun of Horovod's MPI first on PATH"
    return f"{first}, then: hvdtrain launch -np {{size}} -- ...   (hvdtrain doctor shows whose is whose)"
