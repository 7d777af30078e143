"""The steps of a one-parameter model, by the trainer and by hand: what the rank of `bench overhead` does.

The task: `steps` of a block, `blocks` of each side, and `round`, the number of this start. It gives the median
microseconds per step of each side.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hvdtrain.config import SentinelConfig
from hvdtrain.diagnostics.bench.alternation import alternate
from hvdtrain.diagnostics.bench.models import Built
from hvdtrain.diagnostics.bench.ranks import serve
from hvdtrain.diagnostics.bench.ranks.step import plain_step
from hvdtrain.diagnostics.bench.ranks.trainer import optimizer_over, trainer_over
from hvdtrain.runtime import Run
from hvdtrain.train.trainer import Budget, Trainer

ENDLESS = 2**40


@dataclass(frozen=True)
class OneParameter(Built):
    """A model that is a single number, drawn to the mean of its inputs."""

    def loss(self, model: nn.Module | None = None) -> Tensor:
        """Mean square distance."""
        (parameter,) = (model or self.model).parameters()
        return (self.inputs - parameter).square().mean()


def one_parameter() -> OneParameter:
    """The model and its batch of one sample."""
    model = nn.Module()
    model.register_parameter("number", nn.Parameter(torch.zeros(1)))
    return OneParameter(model, torch.ones(1), torch.zeros(1, dtype=torch.int64))


def trainer_block(trainer: Trainer, steps: int) -> Callable[[], dict[str, float]]:
    """Collective: what makes so many more steps with a trainer, and says how long one took."""

    def block() -> dict[str, float]:
        trainer.budget = Budget(steps=trainer.step + steps, epochs=1)
        return _per_step(trainer.fit, steps)

    return block


def loop_block(steps: int) -> Callable[[], dict[str, float]]:
    """What makes so many steps of a loop that is written by hand on Horovod, and says how long one took."""
    import horovod.torch as hvd

    built = one_parameter()
    inner = optimizer_over(built.model)
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=built.model.named_parameters(prefix="by_hand"))
    step = plain_step(built, built.model, optimizer)

    def loop() -> None:
        for _ in range(steps):
            step()

    return lambda: _per_step(loop, steps)


def _per_step(work: Callable[[], None], steps: int) -> dict[str, float]:
    began, cpu_began = time.perf_counter(), time.thread_time()
    work()
    took_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu_began
    return {"step": 1e6 * took_s / steps, "step_cpu": 1e6 * cpu_s / steps}


def compare(run: Run, folder: Path, *, steps: int, blocks: int, first: int) -> dict[str, dict[str, float]]:
    """Collective: the sides in turn; the first block of each is not counted."""
    with ExitStack() as stack:

        def block(name: str, sentinel_steps: int | None) -> Callable[[], dict[str, float]]:
            pair = trainer_over(
                run, one_parameter(), steps=ENDLESS, folder=folder, sentinel_steps=sentinel_steps, name=name
            )
            return trainer_block(stack.enter_context(pair)[0], steps)

        sides = {
            "horovod_loop": loop_block(steps),
            "hvdtrain": block("plain", None),
            "hvdtrain_sentinel": block("watched", SentinelConfig().every_steps),
        }
        samples = alternate(sides, rounds=blocks + 1, first=first)
    return {case: {side: statistics.median(of[1:]) for side, of in found.items()} for case, found in samples.items()}


def measure(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Collective: case -> side -> microseconds per step."""
    import hvdtrain

    torch.set_num_threads(1)
    with hvdtrain.init() as run, tempfile.TemporaryDirectory(prefix="hvdtrain-bench-") as folder:
        return compare(run, Path(folder), steps=task["steps"], blocks=task["blocks"], first=task["round"])


if __name__ == "__main__":
    serve(measure)
