"""The record of which samples each committed step used, written by every rank into a file of its own.

A row counts when its step was not undone by a resume from an earlier step; `hvdtrain.data.audit` follows that. Files
are only appended to; a line cut short by a kill is closed at the next start and left out when read.

    attempt = collectives.on_root(lambda: begin_attempt(run_dir, Attempt(size=2, resumed_from=None, n=1437, ...)))
    ledger = Ledger(run_dir, rank=run.topology.rank, attempt=attempt)
    ledger.append(step, batch)             # after batch.commit(); step counts committed steps, from 1
    ledger.flush()                         # on all ranks, before the manifest of a checkpoint is written
    ledger.close()
    collectives.on_root(lambda: end_attempt(run_dir, attempt, step=step))     # the run ended in order after this step

Layout: ``ledger/attempts.jsonl`` by root, one object for each start and each orderly end; ``ledger/rank-0000.jsonl``
with one array ``[attempt, step, epoch, start, stop, [samples]]`` for each step, where start and stop are the positions
of the whole step in the order of the epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from hvdtrain.data.batch import Batch
from hvdtrain.data.partition import Remainder
from hvdtrain.errors import ConfigError, RunDirectoryError

DIRECTORY = "ledger"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a run.

    Attributes:
        size: number of ranks.
        resumed_from: the step whose checkpoint it went on from; None for a start from nothing.
        n: samples in the data set.
        seed: of the order.
        global_batch_size: samples per step.
        remainder: what happens where the batch does not divide the epoch.
        shuffle: whether each epoch has an order of its own.
        attempt: its number, from 1; given by `begin_attempt`.
    """

    size: int
    resumed_from: int | None
    n: int
    seed: int
    global_batch_size: int
    remainder: Remainder = "keep"
    shuffle: bool = True
    attempt: int = 0


class Row(NamedTuple):
    """What one rank used in one step; `samples` are those that were collated."""

    attempt: int
    step: int
    epoch: int
    start: int
    stop: int
    samples: list[int]


def ledger_directory(run_dir: Path) -> Path:
    """Where a run's ledger is."""
    return Path(run_dir) / DIRECTORY


def rank_path(run_dir: Path, rank: int) -> Path:
    """The file of one rank."""
    return ledger_directory(run_dir) / f"rank-{rank:04d}.jsonl"


def _attempts_path(run_dir: Path) -> Path:
    return ledger_directory(run_dir) / "attempts.jsonl"


def _open_to_append(path: Path) -> IO[bytes]:
    """The file, private to the user, ending with a whole line."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "ab")
    length = os.fstat(descriptor).st_size
    if length and os.pread(descriptor, 1, length - 1) != b"\n":
        file.write(b"\n")
    return file


def _force(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _append_attempt_line(run_dir: Path, value: dict[str, Any]) -> None:
    with _open_to_append(_attempts_path(run_dir)) as file:
        file.write(json.dumps(value).encode() + b"\n")
        _force(file)


def begin_attempt(run_dir: Path, attempt: Attempt) -> int:
    """Root only: note a start of the run, and give its number, from 1."""
    number = 1 + max((known.attempt for known in read_attempts(run_dir)), default=0)
    _append_attempt_line(run_dir, asdict(attempt) | {"attempt": number})
    return number


def end_attempt(run_dir: Path, attempt: int, *, step: int) -> None:
    """Root only: note that the run ended in order after `step`, all ranks having closed their ledgers."""
    _append_attempt_line(run_dir, {"attempt": attempt, "ended_at": step})


class Ledger:
    """The file of one rank, open for appending.

    Args:
        run_dir: the run directory; ``ledger/`` is made in it.
        rank: whose file it is.
        attempt: the number from `begin_attempt`.
    """

    def __init__(self, run_dir: Path, *, rank: int, attempt: int) -> None:
        self._attempt = attempt
        self._file = _open_to_append(rank_path(run_dir, rank))

    def append(self, step: int, batch: Batch) -> None:
        """Note what a committed step used; kept in memory, in part, until `flush`.

        Raises:
            ConfigError: the batch is from a source that does not number its samples.
        """
        if batch.indices is None:
            raise ConfigError(
                "keep a ledger of the samples that were used",
                found="the data source does not number its samples",
                remedy="a data set with random access, or --data.ledger false",
            )
        row = [self._attempt, step, batch.epoch, batch.start, batch.stop, batch.indices.tolist()]
        self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def flush(self) -> None:
        """Bring every row to the disk."""
        _force(self._file)

    def close(self) -> None:
        """Flush and close; may be called twice."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lines(path: Path) -> Iterator[Any]:
    """The JSON values of a file's whole lines; what a kill cut short is None."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                yield None


def read_attempts(run_dir: Path) -> list[Attempt]:
    """Every start of the run, in order.

    Raises:
        RunDirectoryError: a line is whole but no such record.
    """
    names = {field.name for field in fields(Attempt)}
    found = []
    for value in _lines(_attempts_path(run_dir)):
        if value is None or "ended_at" in value:
            continue
        if set(value) != names:
            raise RunDirectoryError(f"read {_attempts_path(run_dir)}", found=f"a line that is no attempt: {value!r}")
        found.append(Attempt(**value))
    return found


def read_ends(run_dir: Path) -> dict[int, int]:
    """The attempts that ended in order, and after which step."""
    values = (value for value in _lines(_attempts_path(run_dir)) if value is not None)
    return {value["attempt"]: value["ended_at"] for value in values if "ended_at" in value}


def read_rows(path: Path) -> Iterator[Row | None]:
    """The rows of one rank's file, one at a time; None for a line that is no row, as a kill leaves."""
    for value in _lines(path):
        try:
            row = Row(*value)
            kinds = {*map(type, row[:5]), *map(type, row.samples)}
        except TypeError:
            yield None
            continue
        yield row if kinds == {int} else None
