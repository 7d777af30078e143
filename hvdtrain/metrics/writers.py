"""Writers of records: each takes a flat mapping with `step`, `epoch`, `split`, `time_s` and the metrics by name.

All of them are *Root only:*; the records are the same on every rank, because metrics are reduced before.

    write = jsonl(run_dir / "metrics.jsonl")
    write({"step": 10, "epoch": 0, "split": "train", "time_s": 1.5, "loss": 0.3})
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]
Writer: TypeAlias = Callable[[Record], None]

_POSITION = ("step", "epoch", "split", "time_s")
_SLOWEST = "slowest_"  # of the slowest rank; the log has a sentence for it


def _is_metric(name: str) -> bool:
    return name not in _POSITION and not name.startswith(_SLOWEST)


def jsonl(path: Path) -> Writer:
    """Root only: append each record as one line of JSON, at once."""

    def write(record: Record) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a") as file:
            file.write(json.dumps(dict(record)) + "\n")

    return write


def console(log: logging.Logger) -> Writer:
    """Root only: one line a record, such as ``train step 40 epoch 1: loss 0.3120, accuracy 0.9062``."""

    def write(record: Record) -> None:
        values = ", ".join(f"{name} {value:.4g}" for name, value in record.items() if _is_metric(name))
        log.info("%s step %d epoch %d: %s", record["split"], record["step"], record["epoch"], values)

    return write


def tensorboard(directory: Path) -> Writer:
    """Root only: scalars named ``train/loss``; needs the extra `tensorboard`."""
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(str(directory))

    def write(record: Record) -> None:
        for name, value in record.items():
            if _is_metric(name):
                board.add_scalar(f"{record['split']}/{name}", value, record["step"])
        board.flush()

    return write


def forget_after(path: Path, step: int) -> None:
    """Root only: drop the records of steps beyond `step`, which a resumed run is going to make again."""
    if not path.exists():
        return
    kept = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
    beside = path.with_suffix(".jsonl.partial")
    beside.write_text("".join(f"{line}\n" for line in kept))
    beside.replace(path)


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # the half line of a killed writer
        return float("inf")
