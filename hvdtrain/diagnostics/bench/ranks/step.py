"""The steps of one side on some models: what a rank of `bench step` does.

The task: `side`, `models`, and what the side can be told: `strategy`, or settings of DDP. It gives the median seconds
per step for each model.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch

from hvdtrain.diagnostics.bench.models import MODELS, Built, build
from hvdtrain.diagnostics.bench.ranks import serve
from hvdtrain.diagnostics.bench.ranks.trainer import optimizer_over, trainer_over

WARM_UP = 4  # steps that are not counted
Measure: TypeAlias = Callable[[str, Built, int], list[float]]


def timed(step: Callable[[], object], steps: int) -> list[float]:
    """Seconds of each of so many steps, after the first few."""
    ended = []
    for _ in range(WARM_UP + steps):
        step()
        ended.append(time.perf_counter())
    return [after - before for before, after in zip(ended[WARM_UP - 1 :], ended[WARM_UP:], strict=False)]


def plain_step(built: Built, model: Any, optimizer: Any) -> Callable[[], None]:
    """The loop that a user of torch, Horovod or DDP writes, with the loss looked at in each step as a trainer does."""

    def step() -> None:
        optimizer.zero_grad()
        loss = built.loss(model)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()

    return step


@contextmanager
def no_communication(task: dict[str, Any]) -> Iterator[Measure]:
    """Collective: the same ranks at the same time, each by itself."""
    from mpi4py import MPI

    def measure(name: str, built: Built, steps: int) -> list[float]:
        step = plain_step(built, built.model, optimizer_over(built.model))
        MPI.COMM_WORLD.Barrier()  # they are to compute at the same time
        return timed(step, steps)

    yield measure


@contextmanager
def horovod(task: dict[str, Any]) -> Iterator[Measure]:
    """Collective: Horovod as its manual shows it."""
    import horovod.torch as hvd

    hvd.init()

    def measure(name: str, built: Built, steps: int) -> list[float]:
        inner = optimizer_over(built.model)
        hvd.broadcast_parameters(built.model.state_dict(), root_rank=0)
        named = ((f"{name}.{key}", value) for key, value in built.model.named_parameters())
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=named)
        return timed(plain_step(built, built.model, optimizer), steps)

    yield measure
    hvd.shutdown()


@contextmanager
def ddp(task: dict[str, Any]) -> Iterator[Measure]:
    """Collective: DistributedDataParallel over Gloo as its manual shows it, with the settings that the task names."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")

    def measure(name: str, built: Built, steps: int) -> list[float]:
        model = DistributedDataParallel(built.model, **task.get("ddp", {}))
        return timed(plain_step(built, model, optimizer_over(built.model)), steps)

    yield measure
    dist.barrier()  # a rank that leaves while another still receives makes that one abort
    dist.destroy_process_group()


@contextmanager
def hvdtrain_trainer(task: dict[str, Any]) -> Iterator[Measure]:
    """Collective: the trainer of hvdtrain with its defaults: signal, metrics, watchdog and sentinel on."""
    import hvdtrain
    from hvdtrain.config import SentinelConfig

    with hvdtrain.init() as run, tempfile.TemporaryDirectory(prefix="hvdtrain-bench-") as folder:
        shared = Path(run.collectives.broadcast_json(folder))

        def measure(name: str, built: Built, steps: int) -> list[float]:
            every = SentinelConfig().every_steps
            with trainer_over(
                run,
                built,
                steps=WARM_UP + steps,
                folder=shared,
                strategy=task["strategy"],
                sentinel_steps=every,
                name=name,
            ) as (trainer, stopwatch):
                trainer.fit()
            return stopwatch.step_s[WARM_UP - 1 :]

        yield measure
        run.collectives.barrier()  # the folder is root's, and goes away with it


SIDES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no_communication": no_communication,
    "hvdtrain": hvdtrain_trainer,
    "horovod": horovod,
    "ddp": ddp,
}


def measure(task: dict[str, Any]) -> dict[str, float]:
    """Collective: model -> median seconds per step of this rank."""
    torch.set_num_threads(1)
    found = {}
    with SIDES[task["side"]](task) as of_side:
        for name in task["models"]:
            steps = task.get("steps") or MODELS[name][1]
            found[name] = statistics.median(of_side(name, build(name), steps))
    return found


if __name__ == "__main__":
    serve(measure)
