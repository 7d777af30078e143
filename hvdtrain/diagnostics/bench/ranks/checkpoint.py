"""Saving and restoring a large state: what the process of `bench checkpoint` does.

The task: `kind` (`save` or `training`), `folder`, `nbytes` of state, the numbers of the kind, and `round`, the number
of this start. All of it happens in one process, because root alone writes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hvdtrain.checkpoint.manager import CheckpointManager
from hvdtrain.checkpoint.parts import MOST_THREADS
from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.diagnostics.bench.alternation import alternate
from hvdtrain.diagnostics.bench.jobs import cleaned_up
from hvdtrain.diagnostics.bench.models import build
from hvdtrain.diagnostics.bench.ranks import serve
from hvdtrain.diagnostics.bench.ranks.step import plain_step
from hvdtrain.diagnostics.bench.ranks.trainer import optimizer_over
from hvdtrain.statetree import raw_bytes

TENSORS = 32  # in the state
PIECE_BYTES = 1 << 24


def state_of(nbytes: int) -> dict[str, Tensor]:
    """A state of about so many bytes, of random numbers."""
    return {f"tensor{number:02}": torch.rand(nbytes // 4 // TENSORS) for number in range(TENSORS)}


def copy_s(state: dict[str, Tensor], targets: dict[str, Tensor]) -> float:
    """Seconds to copy the state into memory that is there."""
    began = time.perf_counter()
    for name, tensor in state.items():
        targets[name].copy_(tensor)
    return time.perf_counter() - began


def give_memory_to_cores(nbytes: int, folder: Path) -> None:
    """Write and delete a file on each core, so that the next file finds its memory wherever it is written.

    Linux keeps what a core has freed for that core, and a virtual machine may hand other free memory back to its host,
    from where it comes back slowly. Who happens to write on the core that deleted the file before would win by that
    alone. This process stays on so many cores as a save has threads.
    """
    path, cores = folder / "memory", sorted(os.sched_getaffinity(0))[:MOST_THREADS]
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})
            with path.open("wb", buffering=0) as file:
                for _ in range(0, nbytes, PIECE_BYTES):
                    file.write(bytes(PIECE_BYTES))
            path.unlink()
    finally:
        os.sched_setaffinity(0, cores)


def raw_write_s(state: dict[str, Tensor], folder: Path) -> float:
    """Seconds to write the bytes of the state into one new file and fsync it: nothing hashed, nothing read back."""
    path = folder / f"raw-{secrets.token_hex(4)}"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for tensor in state.values():
            view: Any = raw_bytes(tensor).numpy()
            for start in range(0, len(view), PIECE_BYTES):
                file.write(view[start : start + PIECE_BYTES])
        os.fsync(file.fileno())
    took_s = time.perf_counter() - began
    path.unlink()
    return took_s


def raw_read_s(folder: Path, state: dict[str, Tensor]) -> float:
    """Seconds to read as many bytes from one file; the page cache may have them, for both sides alike."""
    path = folder / f"raw-{secrets.token_hex(4)}"
    path.write_bytes(b"".join(tensor.numpy().tobytes() for tensor in state.values()))
    began = time.perf_counter()
    bytearray(path.read_bytes())
    took_s = time.perf_counter() - began
    path.unlink()
    return took_s


def save(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Case -> side -> number: blocked seconds, written bytes per second, seconds to restore."""
    state = state_of(task["nbytes"])
    nbytes = sum(tensor.nbytes for tensor in state.values())
    targets = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    steps = iter(range(1, 1000))
    with (
        tempfile.TemporaryDirectory(prefix="hvdtrain-bench-", dir=task["folder"]) as folder,
        manager_in(checkpoints := Path(folder, "checkpoints"), keep=None) as manager,  # closed before its folder goes
    ):

        def saved() -> dict[str, float]:
            give_memory_to_cores(nbytes, Path(folder))
            before = list(checkpoints.glob("step-*"))
            manager.save(next(steps), {"model": dict(state)})
            manager.close()
            for path in before:  # as the file of the other side: deleting is not timed
                shutil.rmtree(path)
            assert manager.last_blocked_s is not None
            assert manager.last_save_s is not None
            return {"blocked": manager.last_blocked_s, "written": nbytes / manager.last_save_s}

        def raw() -> dict[str, float]:
            give_memory_to_cores(nbytes, Path(folder))
            blocked = copy_s(state, targets)
            return {"blocked": blocked, "written": nbytes / raw_write_s(state, Path(folder))}

        samples = alternate({"raw": raw, "hvdtrain": saved}, rounds=task["repeats"] + 1, first=task["round"])
        restart = {"restart": {"raw": raw_read_s(Path(folder), state), "hvdtrain": restore_s(manager)}}
    medians = {case: {side: statistics.median(of[1:]) for side, of in sides.items()} for case, sides in samples.items()}
    return medians | restart


def manager_in(folder: Path, *, keep: int | None = 1) -> CheckpointManager:
    """A manager for one rank."""
    collectives = Collectives(SoloTransport())
    return CheckpointManager(folder, collectives=collectives, run_id="bench", keep=keep, on_error="fail")


def restore_s(manager: CheckpointManager) -> float:
    """Seconds to find, verify and read the newest checkpoint."""
    began = time.perf_counter()
    assert manager.restore_latest() is not None
    return time.perf_counter() - began


def training(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Milliseconds per step of a training that saves once in so many seconds, and of one that does not."""
    state = state_of(task["nbytes"])
    built = build(task["model"])
    step = plain_step(built, built.model, optimizer_over(built.model))
    with (
        tempfile.TemporaryDirectory(prefix="hvdtrain-bench-", dir=task["folder"]) as folder,
        manager_in(Path(folder, "checkpoints")) as manager,
    ):
        manager.save(1, {"model": dict(state)})  # the memory of the copy is there from the first save on
        manager.close()
        numbers = iter(range(2, 1000))

        def saving() -> dict[str, float]:
            return _ms_per_step(step, task["every_s"], lambda: manager.save(next(numbers), {"model": dict(state)}))

        def not_saving() -> dict[str, float]:
            manager.close()
            return _ms_per_step(step, task["every_s"], lambda: None)

        sides = {"no_saves": not_saving, "hvdtrain": saving}
        samples = alternate(sides, rounds=task["repeats"], first=task["round"])
        manager.close()
        shutil.rmtree(Path(folder, "checkpoints"))
    return {case: {side: statistics.median(of) for side, of in found.items()} for case, found in samples.items()}


def _ms_per_step(step: Callable[[], None], seconds: float, first: Callable[[], None]) -> dict[str, float]:
    began, steps = time.perf_counter(), 0
    first()
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    return {"training": 1e3 * (time.perf_counter() - began) / max(1, steps)}


KINDS = {"save": save, "training": training}


def measure(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Case -> side -> number."""
    return KINDS[task["kind"]](task)


if __name__ == "__main__":
    with cleaned_up():
        serve(measure)
