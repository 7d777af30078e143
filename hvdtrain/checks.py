"""Facts about how a process was started, and what they mean: one table, read by the launch guard and by `doctor`.

A check is a pure function from facts to a finding, so that every case is tested without the launcher that makes it.
What no table here can say is never guessed: a check whose facts are missing passes.

    facts = LaunchFacts(env=os.environ)                       # before Horovod is started
    guard(facts)                                              # LaunchError, or nothing
    guard(replace(facts, size=hvd.size(), host=gethostname()))      # and with what Horovod reports
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hvdtrain.errors import LaunchError
from hvdtrain.topology import Promise, detect


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check says: whether it holds, what it saw, and what to type when it does not."""

    check: str
    status: Literal["pass", "warn", "fail"]
    asked: str = ""
    found: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchFacts:
    """What is known about the start of this process; None where it is not known (yet).

    Attributes:
        env: the environment the process was started with.
        host: the name of this host.
        size: what Horovod reports.
        mpi_size: what MPI reports through mpi4py; None under Gloo.
        controller: "mpi" or "gloo".
        mpi_library: the first line of MPI's own description of itself.
    """

    env: Mapping[str, str]
    host: str = "this host"
    size: int | None = None
    mpi_size: int | None = None
    controller: str | None = None
    mpi_library: str = "unknown"

    @property
    def promise(self) -> Promise | None:
        """What the innermost launcher's variables promise."""
        return detect(self.env)


Check = Callable[[LaunchFacts], Finding]


def _passed(check: str) -> Finding:
    return Finding(check=check, status="pass")


def _has(env: Mapping[str, str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in env)


def no_launcher_behind_variables(facts: LaunchFacts) -> Finding:
    """Open MPI's position variables without those of its runtime: set by hand, or left over in this shell."""
    name, promise = "launcher behind the variables", facts.promise
    if not (promise and promise.launcher.startswith("mpirun") and (promise.size or 1) > 1):
        return _passed(name)
    if _has(facts.env, "PMIX_") or "OMPI_MCA_orte_hnp_uri" in facts.env:
        return _passed(name)
    return Finding(
        check=name,
        status="fail",
        asked=f"train on {promise.size} ranks ({promise.source})",
        found=f"no mpirun behind it on {facts.host}: there is no PMIX_RANK; the OMPI_* variables were set by hand "
        "or are left over from another job",
        remedy=f"unset ${{!OMPI_*}}, or start with: mpirun -np {promise.size} ...",
    )


def srun_without_pmi(facts: LaunchFacts) -> Finding:
    """Tasks that srun started without a process manager interface: each of them would be rank 0 of 1."""
    name, promise = "srun offers PMIx", facts.promise
    if not (promise and promise.launcher == "srun" and (promise.size or 1) > 1) or _has(facts.env, "PMIX_"):
        return _passed(name)
    return Finding(
        check=name,
        status="fail",
        asked=f"train on {promise.size} ranks ({promise.source})",
        found=f"task {promise.rank} on {facts.host} was started by srun without PMIx (--mpi=none, or MpiDefault=none)",
        remedy="srun --mpi=pmix ...   (srun --mpi=list shows what this SLURM has)",
    )


def alone_in_allocation(facts: LaunchFacts) -> Finding:
    """A plain process in a batch script or salloc shell that has several tasks: nothing starts the others."""
    name, promise = "started by a launcher inside the allocation", facts.promise
    if not (promise and promise.launcher.startswith("sbatch") and (promise.size or 1) > 1):
        return _passed(name)
    return Finding(
        check=name,
        status="fail",
        asked=f"train on {promise.size} ranks ({promise.source})",
        found=f"this process was started by itself in the batch script on {facts.host}; nothing started the others",
        remedy="srun --mpi=pmix hvdtrain run ...   or   hvdtrain launch -- hvdtrain run ...",
    )


_CAUSES = {
    "horovodrun": (
        "Horovod did not take part: its build lacks the controller that horovodrun chose, or HOROVOD_* variables are "
        "left over from another job",
        "hvdtrain install-horovod   (horovodrun --check-build shows what it has)",
    ),
    "mpirun (Open MPI)": (
        "the mpirun that started this belongs to another MPI than the one Horovod was built with, or Horovod was built "
        "without MPI",
        "hvdtrain launch -np {size} -- ...   (it takes the mpirun that fits)",
    ),
    "mpiexec (Hydra: MPICH or Intel MPI)": (
        "mpiexec of MPICH or Intel MPI started a Horovod that was built with another MPI",
        "hvdtrain launch -np {size} -- ...   (it takes the mpirun that fits)",
    ),
    "srun": (
        "srun and Horovod's MPI do not speak the same process manager interface",
        "srun --mpi=pmix ...   or   hvdtrain launch --launcher mpirun -- ...",
    ),
    "torchrun": (
        "torchrun started this; Horovod is started by mpirun, horovodrun or srun",
        "hvdtrain launch -np {size} -- ...",
    ),
}


def promised_size_is_there(facts: LaunchFacts) -> Finding:
    """The launcher's variables promise more ranks than Horovod reports: N copies of rank 0 of 1."""
    name, promise = "size that the launcher promised", facts.promise
    if promise is None or promise.size is None or facts.size is None or promise.size <= facts.size:
        return _passed(name)
    cause, remedy = _CAUSES.get(promise.launcher, ("the cause is not known", "hvdtrain doctor"))
    return Finding(
        check=name,
        status="fail",
        asked=f"train on {promise.size} ranks ({promise.source}, set by {promise.launcher})",
        found=f"Horovod reports size {facts.size} on {facts.host} (MPI: {facts.mpi_library}): {cause}",
        remedy=remedy.format(size=promise.size),
    )


def horovod_and_mpi_agree(facts: LaunchFacts) -> Finding:
    """Horovod and mpi4py must be in the same MPI world."""
    name = "one MPI world"
    if facts.size is None or facts.mpi_size is None or facts.size == facts.mpi_size:
        return _passed(name)
    return Finding(
        check=name,
        status="fail",
        asked=f"one job of {facts.mpi_size} ranks, as MPI sees it through mpi4py ({facts.mpi_library})",
        found=f"Horovod reports size {facts.size} on {facts.host}: mpi4py and Horovod use different MPI libraries",
        remedy="hvdtrain install-horovod   (it builds for the MPI that mpi4py finds)",
    )


LAUNCH_CHECKS: tuple[Check, ...] = (
    no_launcher_behind_variables,
    srun_without_pmi,
    alone_in_allocation,
    promised_size_is_there,
    horovod_and_mpi_agree,
)


def guard(facts: LaunchFacts) -> None:
    """Refuse a wrong launch, saying which of the usual causes fits.

    Raises:
        LaunchError: the first check of `LAUNCH_CHECKS` that fails.
    """
    for check in LAUNCH_CHECKS:
        finding = check(facts)
        if finding.status == "fail":
            raise LaunchError(finding.asked, found=finding.found, remedy=finding.remedy)
