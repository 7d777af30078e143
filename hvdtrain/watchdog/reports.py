"""What is said of a rank that died or is stuck, by another one: a `Failure` made of its record, its log and its stacks.

death(record, peers.death(1), logs=run_dir / "logs", told_by=0)       # "it was killed by SIGKILL"
stall(records, conditions, now, logs=run_dir / "logs", told_by=0)     # "no progress for 301 s; rank 0 waits for ..."
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from hvdtrain.failure import Failure, Kind
from hvdtrain.phases import Record
from hvdtrain.watchdog.peers import Death
from hvdtrain.watchdog.stacks import read_stacks
from hvdtrain.watchdog.stall import Condition, culprit, said, table

_WHOLE_LOG_BYTES = 10**7


def died(record: Record, death: Death, *, logs: Path, told_by: int, kills: int = 0) -> Failure:
    """A rank of this host ended before the job did.

    Args:
        record: where it was.
        death: how it ended.
        logs: the directory of the ranks' logs, where faulthandler writes when a fatal signal comes.
        told_by: the rank that says so.
        kills: processes that the kernel has killed here for want of memory, since this rank began.
    """
    memory = "; the kernel has killed a process here for want of memory" if kills > 0 else ""
    text = fatal_part(read_stacks(log_file(logs, record.rank), _WHOLE_LOG_BYTES))
    return _failure(record, "killed", f"it {death}{memory}", text, told_by, signal=death.signal)


def stuck(
    records: Mapping[int, Record], conditions: Mapping[int, Condition], now: float, *, logs: Path, told_by: int
) -> Failure:
    """Nobody makes progress: who waits for whom, since when, and where that rank is.

    Args:
        records: of all ranks.
        conditions: what is the matter with each.
        now: seconds since 1970.
        logs: the directory of the ranks' stacks.
        told_by: the rank that says so.
    """
    rank = culprit(records, conditions)
    waiting = tuple(sorted(r for r, state in conditions.items() if state == "waits" and r != rank))
    still_s = now - max(record.moved for record in records.values() if not record.ended)
    text = read_stacks(stack_file(logs, rank)) or "  (it could not say where it is)"
    return _failure(
        records[rank],
        "stall",
        f"no progress for {still_s:.0f} s; {_who_waits(waiting)} for rank {rank}, which {said(conditions[rank])}",
        f"{table(records, conditions, now)}\nrank {rank} is here:\n{text}",
        told_by,
        waiting=waiting,
    )


def _who_waits(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 1:
        return f"ranks {', '.join(map(str, ranks))} wait"
    return f"rank {ranks[0]} waits" if ranks else "nobody waits"


def _failure(
    record: Record, kind: Kind, reason: str, text: str, told_by: int, *, signal: str = "", waiting: tuple[int, ...] = ()
) -> Failure:
    return Failure(
        rank=record.rank,
        host=record.host,
        step=record.step,
        phase=record.phase,
        kind=kind,
        reason=reason,
        signal=signal,
        traceback=text,
        told_by=told_by,
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        waiting=waiting,
    )


def fatal_part(log: str) -> str:
    """What faulthandler wrote at the end of a log when the process died of a fatal signal; "" if it did not."""
    start = log.rfind("Fatal Python error:")
    return log[start:].rstrip() if start >= 0 else ""


def record_file(directory: Path, rank: int) -> Path:
    """Where the record of a rank is."""
    return directory / f"rank-{rank:04d}"


def stack_file(logs: Path, rank: int) -> Path:
    """Where the stacks of a rank are."""
    return logs / f"stacks-rank-{rank:04d}.txt"


def log_file(logs: Path, rank: int) -> Path:
    """Where the log of a rank is."""
    return logs / f"rank-{rank:04d}.log"
