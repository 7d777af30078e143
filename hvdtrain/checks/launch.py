"""How this process was started, and what that means: the launch guard.

Facts become known in three steps: before Horovod is loaded, when it is loaded, and when it has started. The guard is
asked after each, and refuses at the first that says which of the usual mistakes was made.

    facts = LaunchFacts(env=os.environ)                                 # LaunchError, or the warnings
    guard(facts)
    guard(replace(facts, controllers=("mpi",), horovod_mpi="Open MPI"))
    guard(replace(facts, size=hvd.size(), host=gethostname()))
"""

from __future__ import annotations

from collections.abc import Callable

from hvdtrain.checks.environment import (
    alone_in_allocation,
    gloo_variables_left_over,
    no_launcher_behind_variables,
    srun_without_pmi,
)
from hvdtrain.checks.finding import Finding, failed, passed
from hvdtrain.checks.launchfacts import HYDRA, OPEN_MPI, LaunchFacts, asked_of, fitting
from hvdtrain.checks.libraries import (
    horovod_and_mpi_agree,
    horovod_has_mpi,
    launcher_of_horovods_mpi,
    launcher_of_mpi4pys_mpi,
)
from hvdtrain.errors import LaunchError

Check = Callable[[LaunchFacts], Finding]

FITS = "{fitting}"  # the mpirun of Horovod's own MPI
_CAUSES = {
    "horovodrun": (
        "Horovod did not take part: its build lacks the controller that horovodrun chose, or HOROVOD_* variables are "
        "left over from another job",
        "hvdtrain install-horovod   (horovodrun --check-build shows what it has)",
    ),
    OPEN_MPI: (
        "the mpirun that started this belongs to another MPI than the one Horovod was built with, or Horovod was built "
        "without MPI",
        FITS,
    ),
    HYDRA: ("mpiexec of MPICH or Intel MPI started a Horovod that was built with another MPI", FITS),
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
        return passed(name)
    cause, remedy = _CAUSES.get(promise.launcher, ("the cause is not known", "hvdtrain doctor"))
    return failed(
        name,
        asked=f"{asked_of(promise).removesuffix(')')}, set by {promise.launcher})",
        found=f"Horovod reports size {facts.size} on {facts.host} (MPI: {facts.mpi_library}): {cause}",
        remedy=remedy.replace(FITS, fitting(facts)).format(size=promise.size),
    )


LAUNCH_CHECKS: tuple[Check, ...] = (
    gloo_variables_left_over,
    no_launcher_behind_variables,
    srun_without_pmi,
    alone_in_allocation,
    horovod_has_mpi,
    launcher_of_horovods_mpi,
    launcher_of_mpi4pys_mpi,
    promised_size_is_there,
    horovod_and_mpi_agree,
)


def guard(facts: LaunchFacts) -> tuple[Finding, ...]:
    """Refuse a wrong launch, saying which of the usual causes fits.

    Returns:
        What is only suspicious.

    Raises:
        LaunchError: the first check of `LAUNCH_CHECKS` that fails.
    """
    warnings = []
    for finding in (check(facts) for check in LAUNCH_CHECKS):
        if finding.status == "fail":
            raise LaunchError(finding.asked, found=finding.found, remedy=finding.remedy)
        if finding.status == "warn":
            warnings.append(finding)
    return tuple(warnings)
