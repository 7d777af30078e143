"""The link between two ranks: what `hvdtrain predict` fits its latency and bandwidth to.

The task: `sizes` in bytes and `limit_s`, about how long each size and side may take. It gives microseconds by size and
side: `one_way` (half of there and back), `exchange` (both send to each other at the same time), and `horovod` (an
all-reduce, its negotiation included); and by `SIDE unsteady` their standard deviation as a part of that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from mpi4py import MPI

import hvdtrain
from hvdtrain.diagnostics.bench.ranks import serve

MOST_REPEATS = 60
LEAST_REPEATS = 3
Operation: TypeAlias = Callable[[], object]


def sides(communicator: MPI.Comm, numel: int) -> dict[str, tuple[Operation, float]]:
    """Collective: side -> what is timed, and how many times its cost that is."""
    import horovod.torch as hvd

    tensor = torch.zeros(numel)
    mine, theirs = torch.zeros(numel).numpy(), torch.zeros(numel).numpy()
    peer = 1 - communicator.rank

    def there_and_back() -> None:
        for sender in (0, 1):
            if communicator.rank == sender:
                communicator.Send(mine, peer)
            else:
                communicator.Recv(theirs, peer)

    return {
        "one_way": (there_and_back, 2.0),
        "exchange": (lambda: communicator.Sendrecv(mine, peer, 0, theirs, peer, 0), 1.0),
        "horovod": (lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=f"link.{numel}"), 1.0),
    }


def timed(operation: Operation, communicator: MPI.Comm, limit_s: float) -> list[float]:
    """Collective: seconds of each operation, sorted; the first, which says how many follow, is not among them."""
    took_s: list[float] = []
    repeats = 1
    while len(took_s) < repeats:
        communicator.Barrier()
        began = time.perf_counter()
        operation()
        took_s.append(time.perf_counter() - began)
        if len(took_s) == 1:
            mine = max(LEAST_REPEATS, min(MOST_REPEATS, int(limit_s / max(took_s[0], 1e-6))))
            repeats = 1 + communicator.allreduce(mine, op=MPI.MIN)
    return sorted(took_s[1:])


def figures(side: str, seconds: list[float], times: float) -> dict[str, float]:
    """The mean of the middle half in microseconds, and how far all but the fastest and the slowest are spread."""
    aside = len(seconds) // 4
    middle = statistics.mean(seconds[aside : len(seconds) - aside])
    inner = seconds[1:-1] if len(seconds) >= 5 else seconds
    return {side: 1e6 * middle / times, f"{side} unsteady": statistics.stdev(inner) / middle}


def measure(task: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Collective: size in bytes -> side -> microseconds."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    with hvdtrain.init():
        communicator = MPI.COMM_WORLD.Dup()
        for nbytes in task["sizes"]:
            of_size = found.setdefault(str(nbytes), {})
            for side, (operation, times) in sides(communicator, nbytes // 4).items():
                of_size |= figures(side, timed(operation, communicator, task["limit_s"]), times)
    return found


if __name__ == "__main__":
    serve(measure)
