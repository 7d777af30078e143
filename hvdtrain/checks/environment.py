"""What the environment alone says about a start: left-over variables, a missing launcher, a missing interface.

gloo_variables_left_over(facts).remedy         # "unset ${!HOROVOD_GLOO_*} ..."
srun_without_pmi(facts).found                  # "task 1 on gpu01 was started by srun without PMIx ..."
alone_in_allocation(facts).status              # "fail" in a SLURM job of several tasks, "warn" in PBS and LSF
"""

from __future__ import annotations

from collections.abc import Mapping

from hvdtrain.checks.finding import Finding, failed, passed, warned
from hvdtrain.checks.launchfacts import FAMILIES, OPEN_MPI, LaunchFacts, asked_of
from hvdtrain.topology import LAUNCHERS, promise_of

UNSET_GLOO = "unset ${!HOROVOD_GLOO_*} HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_RANK HOROVOD_SIZE"
# PBS and LSF count slots, which may be meant for threads
SLOT_VARIABLES = (("PBS", "PBS_JOBID", "PBS_NP"), ("LSF", "LSB_JOBID", "LSB_DJOB_NUMPROC"))


def _has(env: Mapping[str, str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in env)


def gloo_variables_left_over(facts: LaunchFacts) -> Finding:
    """Variables of a `horovodrun --gloo` that is not the one which started this: Horovod would wait for it."""
    name, env = "Gloo variables are of this job", facts.env
    left = [key for key in ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_RANK") if key in env]
    others = (promise_of(launcher, env) for launcher in LAUNCHERS if launcher.name in FAMILIES)
    other = next((promise for promise in others if promise and (promise.size or 1) > 1), None)
    if left and other is not None:
        found = f"{left[0]}={env[left[0]]} in the environment of {facts.host}: left over from a horovodrun --gloo, so "
        found += "that Horovod would not use MPI"
        return failed(name, asked=f"{asked_of(other)}, set by {other.launcher}", found=found, remedy=UNSET_GLOO)
    if env.get("HOROVOD_CONTROLLER") == "gloo" and other is not None:
        found = f"HOROVOD_CONTROLLER=gloo on {facts.host}, which {other.launcher} cannot serve"
        return failed(
            name, asked=asked_of(other), found=found, remedy="unset HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS"
        )
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
        asked=asked_of(promise),
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
        asked=asked_of(promise),
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
