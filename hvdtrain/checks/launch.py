"""How this process was started, and what that means: the launch guard.

Facts become known in three steps: before Horovod is loaded, when it is loaded, and when it has started. The guard is
asked after each, and refuses at the first that says which of the usual mistakes was made.

    facts = LaunchFacts(env=os.environ)                                 # LaunchError, or the warnings
    guard(facts)
    guard(replace(facts, controllers=("mpi",), horovod_mpi="Open MPI"))
    guard(replace(facts, size=hvd.size(), host=gethostname()))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvdtrain.checks.finding import Finding, failed, passed, warned
from hvdtrain.errors import LaunchError
from hvdtrain.topology import LAUNCHERS, Promise, detect, promise_of


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


Check = Callable[[LaunchFacts], Finding]

UNSET_GLOO = "unset ${!HOROVOD_GLOO_*} HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_RANK HOROVOD_SIZE"
FITTING = "hvdtrain launch -np {size} -- ...   (it takes the mpirun that fits)"
OPEN_MPI, HYDRA = "mpirun (Open MPI)", "mpiexec (Hydra: MPICH or Intel MPI)"
FAMILIES = {OPEN_MPI: "Open MPI", HYDRA: "MPICH"}  # the MPI whose ranks a launcher can join
# PBS and LSF count slots, which may be meant for threads
SLOT_VARIABLES = (("PBS", "PBS_JOBID", "PBS_NP"), ("LSF", "LSB_JOBID", "LSB_DJOB_NUMPROC"))


def _has(env: Mapping[str, str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in env)


def _asked(promise: Promise) -> str:
    return f"train on {promise.size} ranks ({promise.source})"


def gloo_variables_left_over(facts: LaunchFacts) -> Finding:
    """Variables of a `horovodrun --gloo` that is not the one which started this: Horovod would wait for it."""
    name, env = "Gloo variables are of this job", facts.env
    left = [key for key in ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_RANK") if key in env]
    others = (promise_of(launcher, env) for launcher in LAUNCHERS if launcher.name in FAMILIES)
    other = next((promise for promise in others if promise and (promise.size or 1) > 1), None)
    if left and other is not None:
        found = f"{left[0]}={env[left[0]]} in the environment of {facts.host}: left over from a horovodrun --gloo, so "
        found += "that Horovod would not use MPI"
        return failed(name, asked=f"{_asked(other)}, set by {other.launcher}", found=found, remedy=UNSET_GLOO)
    if env.get("HOROVOD_CONTROLLER") == "gloo" and other is not None:
        found = f"HOROVOD_CONTROLLER=gloo on {facts.host}, which {other.launcher} cannot serve"
        return failed(name, asked=_asked(other), found=found, remedy="unset HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS")
    if facts.rendezvous_answers is False:
        where = f"{env.get('HOROVOD_GLOO_RENDEZVOUS_ADDR')}:{env.get('HOROVOD_GLOO_RENDEZVOUS_PORT', '')}"
        found = f"nobody answers at {where} from {facts.host}: the HOROVOD_GLOO_* variables are left over from a job "
        return failed(name, asked="join a job of horovodrun --gloo", found=found + "that has ended", remedy=UNSET_GLOO)
    return passed(name)


def no_launcher_behind_variables(facts: LaunchFacts) -> Finding:
    """Open MPI's position variables without those of its runtime: set by hand, or left over in this shell."""
    name, promise = "launcher behind the variables", facts.crowd
    if promise is None or promise.launcher != OPEN_MPI:
        return passed(name)
    if _has(facts.env, "PMIX_") or "OMPI_MCA_orte_hnp_uri" in facts.env:
        return passed(name)
    return failed(
        name,
        asked=_asked(promise),
        found=f"no mpirun behind it on {facts.host}: there is no PMIX_RANK; the OMPI_* variables were set by hand "
        "or are left over from another job",
        remedy=f"unset ${{!OMPI_*}}, or start with: mpirun -np {promise.size} ...",
    )


def srun_without_pmi(facts: LaunchFacts) -> Finding:
    """Tasks that srun started without a process manager interface: each of them would be rank 0 of 1."""
    name, promise = "srun offers PMIx", facts.crowd
    if promise is None or promise.launcher != "srun" or _has(facts.env, "PMIX_"):
        return passed(name)
    return failed(
        name,
        asked=_asked(promise),
        found=f"task {promise.rank} on {facts.host} was started by srun without PMIx (--mpi=none, or MpiDefault=none)",
        remedy="srun --mpi=pmix ...   (srun --mpi=list shows what this SLURM has)",
    )


def alone_in_allocation(facts: LaunchFacts) -> Finding:
    """A plain process in a batch script or salloc shell that has several tasks: nothing starts the others."""
    name, env, promise = "started by a launcher inside the allocation", facts.env, facts.promise
    tasks = int(text) if (text := env.get("SLURM_NTASKS", "")).isdigit() else 1
    # a batch script has SLURM_PROCID=0, a shell of salloc has no rank at all
    in_script = promise is not None and promise.launcher.startswith("sbatch")
    if "SLURM_JOB_ID" in env and tasks > 1 and (promise is None or in_script):
        where = "in the batch script" if in_script else "in the shell of salloc"
        return failed(
            name,
            asked=f"train on {tasks} ranks (SLURM_NTASKS={tasks})",
            found=f"this process was started by itself {where} on {facts.host}; nothing started the others",
            remedy="srun --mpi=pmix hvdtrain run ...   or   hvdtrain launch -- hvdtrain run ...",
        )
    for system, marker, slots in SLOT_VARIABLES:
        if promise is None and marker in env and (count := env.get(slots, "")).isdigit() and int(count) > 1:
            found = f"this process was started by itself on {facts.host}, in a {system} job with {slots}={count}"
            return warned(name, asked="train on one rank", found=found, remedy="hvdtrain launch -- hvdtrain run ...")
    return passed(name)


def horovod_has_mpi(facts: LaunchFacts) -> Finding:
    """A Horovod without MPI cannot see that mpirun or srun started it: N copies of rank 0 of 1."""
    name, promise = "Horovod was built with MPI", facts.crowd
    by_mpi = promise is not None and (promise.launcher in FAMILIES or promise.launcher == "srun")
    if promise is None or not by_mpi or facts.controllers is None or "mpi" in facts.controllers:
        return passed(name)
    return failed(
        name,
        asked=f"{_asked(promise)}, started by {promise.launcher}",
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
        asked=f"{_asked(promise)}, set by {by}",
        found=f"{whose} on {facts.host} uses {family}: it cannot join what another MPI's launcher started",
        remedy=remedy.format(size=promise.size),
    )


def launcher_of_horovods_mpi(facts: LaunchFacts) -> Finding:
    """Another MPI's mpirun started a Horovod: its ranks would not find each other."""
    name = "mpirun is of Horovod's MPI"
    remedy = f"{FITTING}   or   srun --mpi=pmix ..."
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


_CAUSES = {
    "horovodrun": (
        "Horovod did not take part: its build lacks the controller that horovodrun chose, or HOROVOD_* variables are "
        "left over from another job",
        "hvdtrain install-horovod   (horovodrun --check-build shows what it has)",
    ),
    OPEN_MPI: (
        "the mpirun that started this belongs to another MPI than the one Horovod was built with, or Horovod was built "
        "without MPI",
        FITTING,
    ),
    HYDRA: ("mpiexec of MPICH or Intel MPI started a Horovod that was built with another MPI", FITTING),
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
        asked=f"{_asked(promise).removesuffix(')')}, set by {promise.launcher})",
        found=f"Horovod reports size {facts.size} on {facts.host} (MPI: {facts.mpi_library}): {cause}",
        remedy=remedy.format(size=promise.size),
    )


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
