"""One computation before and after Horovod starts: what a rank of `bench init` does.

The task: `side` (`horovod` calls `hvd.init`, `hvdtrain` calls `hvdtrain.init`), `model`, `steps`. It gives ms per
forward and backward pass before and after, and how long the start itself took.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from hvdtrain.diagnostics.bench.models import build
from hvdtrain.diagnostics.bench.ranks import serve
from hvdtrain.diagnostics.bench.ranks.step import timed


def start_horovod(stack: ExitStack) -> None:
    """Collective: as Horovod's manual shows it."""
    import horovod.torch as hvd

    hvd.init()
    stack.callback(hvd.shutdown)


def start_hvdtrain(stack: ExitStack) -> None:
    """Collective: as hvdtrain's does."""
    import hvdtrain

    stack.enter_context(hvdtrain.init())


STARTS: dict[str, Callable[[ExitStack], None]] = {"horovod": start_horovod, "hvdtrain": start_hvdtrain}


def measure(task: dict[str, Any]) -> dict[str, float]:
    """Collective: what is timed -> ms."""
    torch.set_num_threads(1)
    built = build(task["model"])

    def compute() -> None:
        built.model.zero_grad()
        built.loss().backward()  # type: ignore[no-untyped-call]

    before = statistics.median(timed(compute, task["steps"]))
    with ExitStack() as stack:
        began = time.perf_counter()
        STARTS[task["side"]](stack)
        took_s = time.perf_counter() - began
        after = statistics.median(timed(compute, task["steps"]))
    return {"before": 1e3 * before, "after": 1e3 * after, "start": 1e3 * took_s}


if __name__ == "__main__":
    serve(measure)
