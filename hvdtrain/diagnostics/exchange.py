"""How long it takes to exchange gradients, by each way that this launch has, measured in turns within one run.

Times are the slowest rank's, from when all ranks are ready until all have the sums; ratios are what to compare, because
the machine is the same for both.

    mpirun -np 2 python -m hvdtrain.diagnostics.exchange               # 50 MB; or so many bytes as first argument
    MPI_Allreduce       52.1 ms   (median of 15)
    shared_memory       13.4 ms   0.26 of MPI_Allreduce
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import hvdtrain
from hvdtrain.runtime import Run
from hvdtrain.sync.shared_memory import SharedMemoryExchange

NBYTES = 50_000_000
TURNS = 15
PARAMETERS = 20  # into which the bytes are cut
BASE = "MPI_Allreduce"


def measure(run: Run, nbytes: int = NBYTES, *, turns: int = TURNS, bucket_bytes: int = 8 * 2**20) -> dict[str, float]:
    """Collective: seconds to sum so many bytes of fp32 gradients over all ranks, medians by way of exchange."""
    ways = {BASE: _mpi(nbytes), "shared_memory": _shared_memory(run, nbytes, bucket_bytes)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 2):
        order = list(ways) if turn % 2 else list(reversed(ways))
        for name in order:
            times[name].append(_slowest(run, ways[name]))
    return {name: statistics.median(row[2:]) for name, row in times.items()}  # the first two touch the memory


def _slowest(run: Run, way: Callable[[], None]) -> float:
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    began = time.perf_counter()
    way()
    longest = np.empty(1)
    MPI.COMM_WORLD.Allreduce(np.array([time.perf_counter() - began]), longest, MPI.MAX)
    return float(longest[0])


def _mpi(nbytes: int) -> Callable[[], None]:
    from mpi4py import MPI

    mine = torch.ones(nbytes // 4).numpy()
    total = torch.empty(nbytes // 4).numpy()
    return lambda: MPI.COMM_WORLD.Allreduce(mine, total)


def _shared_memory(run: Run, nbytes: int, bucket_bytes: int) -> Callable[[], None]:
    """A whole `finish`, as a step makes it, with gradients that lie in the window."""
    parameters = [torch.nn.Parameter(torch.zeros(nbytes // 4 // PARAMETERS)) for _ in range(PARAMETERS)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    exchange = SharedMemoryExchange(run, optimizer, bucket_bytes=bucket_bytes)
    exchange.watch({str(index): parameter for index, parameter in enumerate(parameters)}, 32)
    signal = torch.ones(32)
    return lambda: _finish(exchange, signal)


def _finish(exchange: SharedMemoryExchange, signal: torch.Tensor) -> None:
    exchange.finish(signal, 1)


def table(times: dict[str, float], turns: int = TURNS) -> str:
    """The figures as text, one line for each way."""
    lines = [f"{BASE:<16} {times[BASE] * 1e3:7.1f} ms   (median of {turns})"]
    others = {name: seconds for name, seconds in times.items() if name != BASE}
    lines += [f"{name:<16} {s * 1e3:7.1f} ms   {s / times[BASE]:.2f} of {BASE}" for name, s in others.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    with hvdtrain.init() as run:
        text = table(measure(run, int(sys.argv[1]) if len(sys.argv) > 1 else NBYTES))
        if run.topology.is_root:
            print(text)
