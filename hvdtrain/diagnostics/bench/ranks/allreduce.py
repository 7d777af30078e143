"""All-reduces of several sizes: what a rank of `bench allreduce` does, once under MPI and once under torchrun.

The task: `sizes` in bytes, `blocks` of each side, and `backend` (`mpi` or `gloo`). It gives the median microseconds of
one operation for each size and side. All ranks meet before each block, and all copy at the same time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hvdtrain.diagnostics.bench.alternation import alternate
from hvdtrain.diagnostics.bench.ranks import serve
from hvdtrain.runtime import Run

BLOCK_BYTES = 2**28  # moved in one block, up to
MOST_REPEATS = 100
Operation: TypeAlias = Callable[[], object]
Sides: TypeAlias = Callable[[int], dict[str, Operation]]  # from a number of fp32 to what is timed


def repeats_for(nbytes: int) -> int:
    """Operations in one block."""
    return max(1, min(MOST_REPEATS, BLOCK_BYTES // nbytes // 4))


def _buffer(numel: int) -> Tensor:
    return torch.empty(numel).fill_(0.0)  # written, so that its memory is its own


def _copy(numel: int) -> Operation:
    source, target = _buffer(numel), _buffer(numel)
    return lambda: target.copy_(source)


@contextmanager
def under_mpi(task: dict[str, Any]) -> Iterator[tuple[Sides, Operation]]:
    """Collective: a plain copy, MPI itself, Horovod, and hvdtrain's exchange in shared memory."""
    import horovod.torch as hvd
    from mpi4py import MPI

    import hvdtrain

    with hvdtrain.init() as run, ExitStack() as windows:
        communicator = MPI.COMM_WORLD.Dup()

        def sides(numel: int) -> dict[str, Operation]:
            windows.close()  # of the size before
            for_mpi, for_horovod = _buffer(numel), _buffer(numel)
            array = for_mpi.numpy()
            name = f"bench.allreduce.{numel}"
            return {
                "copy": _copy(numel),
                "mpi": lambda: communicator.Allreduce(MPI.IN_PLACE, array),
                "horovod": lambda: hvd.allreduce_(for_horovod, op=hvd.Sum, name=name),
                "shared_memory": _shared_memory(run, numel, windows),
            }

        yield sides, communicator.Barrier


def _shared_memory(run: Run, numel: int, windows: ExitStack) -> Operation:
    """Collective: the exchange of one parameter of that size."""
    from hvdtrain.diagnostics.bench.ranks.trainer import optimizer_over, sync_config
    from hvdtrain.sync.strategies import build_exchange

    model = nn.Module()
    model.register_parameter("buffer", nn.Parameter(_buffer(numel)))
    exchange = build_exchange(run, optimizer_over(model), sync_config("shared_memory"), name=f"bench.{numel}")
    windows.callback(exchange.close)
    exchange.watch(dict(model.named_parameters()), signal_numel=1)
    signal = torch.zeros(1)
    return lambda: exchange.finish(signal, 1)


@contextmanager
def under_gloo(task: dict[str, Any]) -> Iterator[tuple[Sides, Operation]]:
    """Collective: Gloo, and the same plain copy."""
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def sides(numel: int) -> dict[str, Operation]:
        buffer = _buffer(numel)
        return {"gloo": lambda: dist.all_reduce(buffer)}

    yield sides, dist.barrier
    dist.destroy_process_group()


def block(operation: Operation, meet: Operation, repeats: int) -> dict[str, float]:
    """Collective: microseconds of one operation, in a row of several that all ranks begin together."""
    meet()
    began = time.perf_counter()
    for _ in range(repeats):
        operation()
    return {"operation": 1e6 * (time.perf_counter() - began) / repeats}


def compare(sides: Mapping[str, Operation], meet: Operation, *, nbytes: int, blocks: int) -> dict[str, float]:
    """Collective: side -> median microseconds; the first block is not counted."""
    repeats = repeats_for(nbytes)
    timed = {side: lambda one=one: block(one, meet, repeats) for side, one in sides.items()}
    samples = alternate(timed, rounds=blocks + 1)["operation"]
    return {side: statistics.median(of[1:]) for side, of in samples.items()}


def measure(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Collective: size in bytes -> side -> microseconds."""
    backend = {"mpi": under_mpi, "gloo": under_gloo}[task["backend"]]
    torch.set_num_threads(1)
    with backend(task) as (sides, meet):
        return {
            str(nbytes): compare(sides(nbytes // 4), meet, nbytes=nbytes, blocks=task["blocks"])
            for nbytes in task["sizes"]
        }


if __name__ == "__main__":
    serve(measure)
