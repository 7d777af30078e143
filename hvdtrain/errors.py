"""Every exception that hvdtrain raises on purpose, as one tree.

    HvdtrainError               anything below; carries what was asked, what was found and what to type
    ├── UsageError              the user asked for something impossible                        (exit 2)
    │   ├── ConfigError         a setting is misspelled, of the wrong type, or contradicts another
    │   ├── LaunchError         the processes were started in a way that cannot become one job
    │   ├── HostFileError       a host file or host list cannot be understood
    │   ├── InstallError        Horovod cannot be built or installed on this machine as it is
    │   └── RunDirectoryError   a run directory holds something else than what was asked for
    ├── CheckpointError         a checkpoint could not be written, or none can be read
    │   └── InvalidCheckpoint   one checkpoint is damaged, incomplete, hostile or of another model
    ├── ReplicaMismatch         ranks that must hold the same values do not
    ├── StepMismatch            ranks that must be at the same step are not
    ├── StagingError            data could not be copied to every host
    ├── CoverageError           a source gave samples twice, or not at all, to a job
    ├── WorkerLost              a process that loads data died
    ├── OrderError              a batch was committed twice, or out of order
    ├── NonFiniteLoss           a loss or gradient is infinite or not a number
    ├── RootFailed              code that ran on rank zero alone raised; every rank learns of it by this
    └── StopRequested           training ended early because it was asked to, with a checkpoint  (exit 75)

Every message has three parts (asked, found, remedy):

    raise LaunchError(
        "train on 4 ranks (OMPI_COMM_WORLD_SIZE=4)",
        found="Horovod reports size 1 on host gpu01",
        remedy="mpirun -np 4 hvdtrain run digits",
    )
"""

from __future__ import annotations

from typing import Self

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: a supervisor or SLURM should start the job again


class HvdtrainError(Exception):
    """Anything that hvdtrain raises on purpose.

    Args:
        asked: what the user or the program wanted, as a phrase.
        found: what is there instead: value, file:line, rank, host.
        remedy: what to type or change; empty when nothing can be done.

    Attributes:
        agreed: every rank raises this at the same place, so that the job can end in order instead of being aborted.
        rank: whose fault it is, where one rank is known; all ranks name the same.
        phase: in which phase of that rank's step it happened, where that is known.
    """

    exit_status = EXIT_FAILED

    def __init__(self, asked: str, *, found: str, remedy: str = "", agreed: bool = False) -> None:
        super().__init__(asked)
        self.agreed = agreed
        self.rank: int | None = None
        self.phase = ""
        self.asked = asked
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.asked, f"  found: {self.found}"]
        if self.remedy:
            parts.append(f"  do:    {self.remedy}")
        return "\n".join(parts)

    def at(self, rank: int | None, phase: str) -> Self:
        """This error, naming whose fault it is."""
        self.rank, self.phase = rank, phase
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.asked, self.found, self.remedy, self.agreed))


def _rebuild(kind: type[HvdtrainError], asked: str, found: str, remedy: str, agreed: bool) -> HvdtrainError:
    return kind(asked, found=found, remedy=remedy, agreed=agreed)


class UsageError(HvdtrainError):
    """The user asked for something impossible; nothing was started or changed."""

    exit_status = EXIT_USAGE


class ConfigError(UsageError):
    """A setting is misspelled, of the wrong type, or contradicts another."""


class LaunchError(UsageError):
    """The processes were started in a way that cannot become one job."""


class HostFileError(UsageError):
    """A host file or host list cannot be understood."""


class InstallError(UsageError):
    """Horovod cannot be built or installed on this machine as it is."""


class RunDirectoryError(UsageError):
    """A run directory holds something else than what was asked for."""


class CheckpointError(HvdtrainError):
    """A checkpoint could not be written, or none can be read."""


class InvalidCheckpoint(CheckpointError):
    """One checkpoint is damaged, incomplete, hostile or of another model."""


class ReplicaMismatch(HvdtrainError):
    """Ranks that must hold the same values do not."""


class StepMismatch(HvdtrainError):
    """Ranks that must be at the same step are not."""


class StagingError(HvdtrainError):
    """Data could not be copied to every host; what was at the destination before is still there."""


class CoverageError(HvdtrainError):
    """A source that was divided among ranks and workers gave some samples twice, or not at all."""


class WorkerLost(HvdtrainError):
    """A process that loads data for a rank died, killed by the system for its memory for example."""


class OrderError(HvdtrainError):
    """A batch was committed twice, or out of order, or an epoch began before the last one ended."""


class NonFiniteLoss(HvdtrainError):
    """A loss or gradient is infinite or not a number."""


class RootFailed(HvdtrainError):
    """Code that ran on rank zero alone raised something foreign; every rank learns of it by this."""


class StopRequested(HvdtrainError):
    """Training ended early because it was asked to, after a checkpoint was written."""

    exit_status = EXIT_STOPPED
