"""The position of a rank in its job, and what each launcher calls it.

Only Horovod's words are used for position anywhere in hvdtrain; this table is the one place that knows the others:

    hvdtrain     meaning                               torch             Open MPI                    SLURM
    rank         this process among all                RANK              OMPI_COMM_WORLD_RANK        SLURM_PROCID
    size         how many there are                    WORLD_SIZE        OMPI_COMM_WORLD_SIZE       SLURM_STEP_NUM_TASKS
    local_rank   this process among those of its host  LOCAL_RANK        OMPI_COMM_WORLD_LOCAL_RANK  SLURM_LOCALID
    local_size   how many of them are on this host     LOCAL_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_SIZE
    cross_rank   this host among those with such a     GROUP_RANK                                    SLURM_NODEID
                 local rank
    cross_size   how many such hosts there are                                               SLURM_STEP_NUM_NODES

Synopsis:

    promised = detect(os.environ)          # what the launcher's variables promise, before anything is started
    if promised and promised.size != hvd.size():
        ...                                # a wrong launch: see hvdtrain.checks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ROOT = 0  # the rank that writes files, prints, and whose parameters win


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The six position words of one rank, as Horovod reports them."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @property
    def is_root(self) -> bool:
        """Whether this is rank zero."""
        return self.rank == ROOT


SOLO = Topology(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """How one launcher tells a process its position: the name of the environment variable for each word, or None."""

    name: str
    rank: str
    size: str | None
    local_rank: str | None = None
    local_size: str | None = None
    cross_rank: str | None = None
    cross_size: str | None = None
    marker: str | None = None  # a variable that must be there too, where rank and size alone prove nothing


# The order is that of trust: an mpirun inside an sbatch script sets OMPI_* around SLURM_*, and the inner one is meant.
LAUNCHERS: tuple[Launcher, ...] = (
    Launcher(
        name="horovodrun",
        rank="HOROVOD_RANK",
        size="HOROVOD_SIZE",
        local_rank="HOROVOD_LOCAL_RANK",
        local_size="HOROVOD_LOCAL_SIZE",
        cross_rank="HOROVOD_CROSS_RANK",
        cross_size="HOROVOD_CROSS_SIZE",
    ),
    Launcher(
        name="mpirun (Open MPI)",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher(
        name="mpiexec (Hydra: MPICH or Intel MPI)",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
    ),
    Launcher(
        name="srun",
        rank="SLURM_PROCID",
        size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        cross_rank="SLURM_NODEID",
        cross_size="SLURM_STEP_NUM_NODES",
        marker="SLURM_STEP_ID",  # a batch script, which is no rank, has SLURM_PROCID=0 as well
    ),
    Launcher(name="sbatch script or salloc shell", rank="SLURM_PROCID", size="SLURM_NTASKS", marker="SLURM_JOB_ID"),
    Launcher(name="a PMIx launcher", rank="PMIX_RANK", size=None),
    Launcher(
        name="torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
        cross_rank="GROUP_RANK",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the variables of one launcher promise this process; None where they say nothing.

    `source` is the text a message can quote, such as ``OMPI_COMM_WORLD_SIZE=4``.
    """

    launcher: str
    source: str
    rank: int
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None


def _number(env: Mapping[str, str], name: str | None) -> int | None:
    text = env.get(name, "") if name else ""
    return int(text) if text.isascii() and text.isdigit() else None


def promise_of(launcher: Launcher, env: Mapping[str, str]) -> Promise | None:
    """What one launcher's variables promise in `env`, or None when they are not (all) there."""
    rank, size = _number(env, launcher.rank), _number(env, launcher.size)
    if rank is None or (launcher.size and size is None) or (launcher.marker and launcher.marker not in env):
        return None
    return Promise(
        launcher=launcher.name,
        source=f"{launcher.size}={size}" if launcher.size else f"{launcher.rank}={rank}",
        rank=rank,
        size=size,
        local_rank=_number(env, launcher.local_rank),
        local_size=_number(env, launcher.local_size),
    )


def detect(env: Mapping[str, str]) -> Promise | None:
    """The promise of the innermost launcher that set variables in `env`; None for a process started by itself."""
    promises = (promise_of(launcher, env) for launcher in LAUNCHERS)
    return next((promise for promise in promises if promise is not None), None)
