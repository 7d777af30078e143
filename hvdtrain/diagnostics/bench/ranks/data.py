"""How long steps wait for batches, and how long it takes to seek: what the process of `bench data` does.

The task: `kind` (`stall` or `seek`), its numbers, and `round`, the number of this start. Work is a loop that spends
time on a core, in the step as in the decoding, so that both are slowed down alike where cores are scarce.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from hvdtrain.data.loader import Loader, loader
from hvdtrain.diagnostics.bench.alternation import alternate
from hvdtrain.diagnostics.bench.ranks import serve
from hvdtrain.topology import SOLO, Topology

BATCH = 16  # samples in a batch
WARM_UP = 4  # batches that are not counted: workers start meanwhile


class Alone(NamedTuple):
    """What a loader must know of a job: here, that there is one rank."""

    topology: Topology = SOLO
    seed: int = 1


def compute(seconds: float) -> None:
    """Spend time on a core; what others take of it does not count."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


class Decoded:
    """A data set whose samples take time to decode.

    Args:
        samples: how many.
        decode_s: for each.
    """

    def __init__(self, samples: int, decode_s: float) -> None:
        self._samples, self._decode_s = samples, decode_s

    def __len__(self) -> int:
        """Samples."""
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        """One of them."""
        compute(self._decode_s)
        return torch.tensor([index])


def stall_percent(fetched: Iterator[Any], *, step_s: float, steps: int) -> float:
    """Part of the time in which steps wait for the next batch."""
    for _ in range(WARM_UP):
        next(fetched)
        compute(step_s)
    waited, began = 0.0, time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        next(fetched)
        waited += time.perf_counter() - asked
        compute(step_s)
    return 100.0 * waited / (time.perf_counter() - began)


def stall(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Part of a step that decoding takes -> side -> percent of time in which steps wait."""
    samples = BATCH * (task["steps"] + WARM_UP + 8)
    found = {}
    for part in task["parts"]:
        dataset = Decoded(samples, part * task["step_s"] / BATCH)
        sides: dict[str, Callable[[], dict[str, float]]] = {
            "hvdtrain": partial(_stall_of_loader, dataset, task, 1),
            "hvdtrain_no_workers": partial(_stall_of_loader, dataset, task, 0),
            "torch": partial(_stall_of_torch, dataset, task),
        }
        numbers = alternate(sides, rounds=1, first=task["round"])["stall"]
        found[f"stall_{part:g}"] = {side: of[0] for side, of in numbers.items()}
    return found


def _stall_of_loader(dataset: Decoded, task: dict[str, Any], workers: int) -> dict[str, float]:
    batches = loader(Alone(), dataset, global_batch_size=BATCH, num_workers=workers)
    percent = stall_percent(iter(batches), step_s=task["step_s"], steps=task["steps"])
    batches.close()
    return {"stall": percent}


def _stall_of_torch(dataset: Decoded, task: dict[str, Any]) -> dict[str, float]:
    plain: DataLoader[Any] = DataLoader(dataset, BATCH, num_workers=1)  # type: ignore[arg-type]  # a map is enough
    return {"stall": stall_percent(iter(plain), step_s=task["step_s"], steps=task["steps"])}


def seek(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Size of an epoch -> side -> ms from a saved position in its middle to the first batch after it."""
    found = {}
    for samples in task["samples"]:
        numbers = [seek_ms(samples) for _ in range(task["repeats"])]
        found[f"seek_{samples:.0e}".replace("e+0", "e").replace("e+", "e")] = {"hvdtrain": statistics.median(numbers)}
    return found


def seek_ms(samples: int) -> float:
    """From a new loader, which is given a position, to its first batch."""
    batches: Loader = loader(Alone(), Decoded(samples, 0.0), global_batch_size=BATCH)
    middle = samples // 2 // BATCH * BATCH
    began = time.perf_counter()
    batches.load_state_dict({**batches.state_dict(), "consumed": middle})
    first = next(iter(batches))
    took_s = time.perf_counter() - began
    assert first.start == middle
    batches.close()
    return 1e3 * took_s


KINDS: dict[str, Callable[[dict[str, Any]], dict[str, dict[str, float]]]] = {"stall": stall, "seek": seek}


def measure(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Case -> side -> number."""
    torch.set_num_threads(1)
    return KINDS[task["kind"]](task)


if __name__ == "__main__":
    serve(measure)
