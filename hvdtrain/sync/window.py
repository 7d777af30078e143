"""Memory that all ranks of a host see, and how they wait for each other without taking a core from computation.

Every local rank has a segment of the same size in one MPI window. Waiting goes through counters in the window: a rank
raises its own and looks at the others', with short sleeps, because a spinning MPI call would slow down backward.

    hosts = Hosts(MPI.COMM_WORLD)                              # who shares this host, who has my lane on others
    window = Window(hosts.local, segment_bytes)
    window.segment(0)[:16]                                     # bytes of local rank 0, as a torch.uint8 tensor
    window.meet()                                              # all local ranks have arrived, and see all writes
    window.free()                                              # no view may be used any more
"""

from __future__ import annotations

import os
import time
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hvdtrain.collectives import Collectives
from hvdtrain.errors import UsageError

ALIGNMENT = 64  # bytes: of cache lines, and of what vector instructions like
_LOOKS = 50  # at a counter, giving up the core each time, before sleeping between looks
_SLEEP_S = 50e-6
SHARED_FILES = "/dev/shm"


def aligned(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Hosts:
    """Communicators of one exchange: the ranks of this host, and those of this lane across hosts.

    A lane is a local rank that every host has; with 2 ranks on one host and 3 on another there are two.

    Attributes:
        local: the ranks of this host.
        lanes: how many local ranks reduce.
        cross: the ranks of this rank's lane, in the order of hosts; None when it has no lane.
        hosts: how many there are.
    """

    def __init__(self, world: Any) -> None:
        from mpi4py import MPI

        self.local = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
        self.lanes = _agreed(world, self.local.size, MPI.MIN)
        self.hosts = _agreed(world, int(self.local.rank == 0), MPI.SUM)
        leader = _agreed(self.local, world.rank, MPI.MIN)
        lane = self.local.rank if self.local.rank < self.lanes else MPI.UNDEFINED
        cross = world.Split(lane, key=leader)
        self.cross = None if cross == MPI.COMM_NULL else cross

    def free(self) -> None:
        """Collective: let go of the communicators."""
        for communicator in (self.local, self.cross):
            if communicator is not None:
                communicator.Free()


def _agreed(communicator: Any, value: int, operation: Any) -> int:
    """Collective: a whole number made of all ranks'."""
    result = np.empty(1, dtype=np.int64)
    communicator.Allreduce(np.array([value], dtype=np.int64), result, operation)
    return int(result[0])


class Window:
    """One segment for each rank of a host, in memory that they share.

    Args:
        local: communicator of the host's ranks.
        nbytes: of a segment.
    """

    def __init__(self, local: Any, nbytes: int) -> None:
        from mpi4py import MPI

        self._rank, self._size = local.rank, local.size
        self._nbytes = aligned(nbytes)
        self._window = MPI.Win.Allocate_shared(self._nbytes + ALIGNMENT, 1, comm=local)
        self._window.Lock_all()
        buffers = [self._window.Shared_query(rank)[0] for rank in range(self._size)]
        self._segments = [torch.frombuffer(buffer, dtype=torch.uint8)[: self._nbytes] for buffer in buffers]
        self._counters = [memoryview(cast(Any, buffer))[self._nbytes :][:8].cast("q") for buffer in buffers]
        self._segments[self._rank].zero_()
        self._counters[self._rank][0] = 0
        self._meetings = 0
        local.Barrier()

    def segment(self, rank: int) -> Tensor:
        """The bytes of one local rank, uint8 of shape (nbytes,)."""
        return self._segments[rank]

    def meet(self) -> None:
        """Collective: return when all ranks of the host have called it; what they wrote before is visible then."""
        self._meetings += 1
        self._window.Sync()
        self._counters[self._rank][0] = self._meetings
        for counter in self._counters:
            _wait_for(counter, self._meetings)
        self._window.Sync()

    def free(self) -> None:
        """Collective: give the memory back; no tensor in it may be used any more."""
        self._segments, self._counters = [], []
        self._window.Unlock_all()
        self._window.Free()


def _wait_for(counter: memoryview[int], value: int) -> None:
    looks = 0
    while counter[0] < value:
        looks += 1
        if looks < _LOOKS:
            os.sched_yield()
        else:
            time.sleep(_SLEEP_S)


def window_fault(
    collectives: Collectives, *, controller: str, device: torch.device, nbytes: int, path: str = SHARED_FILES
) -> str:
    """Collective: why some ranks cannot have a window, and which; empty where all can.

    Args:
        collectives: of the run.
        controller: "mpi" or "gloo".
        device: where gradients are.
        nbytes: that this host's ranks need together.
        path: the file system in which MPI keeps shared memory.
    """
    fault = _fault(controller, device, nbytes, path)
    rows: list[str] = collectives.gather_json(fault, "hvdtrain.window")
    ranks = [rank for rank, row in enumerate(rows) if row]
    return f"ranks {ranks}: {rows[ranks[0]]}" if ranks else ""


def refuse_impossible_window(
    collectives: Collectives, *, controller: str, device: torch.device, nbytes: int, path: str = SHARED_FILES
) -> None:
    """Collective: refuse on all ranks what cannot work on one; see `window_fault`.

    Raises:
        UsageError: with the reason, and the ranks that have it.
    """
    if fault := window_fault(collectives, controller=controller, device=device, nbytes=nbytes, path=path):
        raise UsageError(
            "exchange gradients through shared memory",
            found=fault,
            remedy="--sync.strategy allreduce",
            agreed=True,
        )


def _fault(controller: str, device: torch.device, nbytes: int, path: str) -> str:
    if controller != "mpi":
        return "Horovod runs on Gloo here, and only MPI has shared windows: start with mpirun or srun --mpi=pmix"
    if device.type != "cpu":
        return f"gradients are on {device}, where NCCL's all-reduce is the faster way"
    if os.path.isdir(path):
        room = os.statvfs(path)
        free = room.f_bavail * room.f_frsize
        if free < nbytes:
            return f"{path} has {free / 2**20:.0f} MiB free and the window needs {nbytes / 2**20:.0f} MiB"
    return ""
