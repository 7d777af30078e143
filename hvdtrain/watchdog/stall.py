"""Who waits for whom: a judgement over the records of all ranks, as pure functions.

A job stalls when no rank makes progress: not one that waits for the others, and not one that works. Who is waited for
is one that is stopped or gone, or else the one that works, and has done so for longest.

    if stalled(records, now, limit_s=300.0):
        conditions = {rank: condition(record, now, state="R") for rank, record in records.items()}
        odd = culprit(records, conditions)
        table(records, conditions, now)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from hvdtrain.phases import Record

Condition: TypeAlias = Literal["gone", "stopped", "silent", "works", "waits"]
_WORST_FIRST: tuple[Condition, ...] = ("gone", "stopped", "silent", "works", "waits")
_SAID: dict[Condition, str] = {
    "gone": "is gone",
    "stopped": "is stopped (SIGSTOP, or a debugger)",
    "silent": "gives no sign of life: C code holds its interpreter, or its host does not answer",
    "works": "works, or waits for something that is no rank",
    "waits": "waits for the others",
}


def stalled(records: Mapping[int, Record], now: float, limit_s: float) -> bool:
    """Whether no rank has made progress for `limit_s` seconds, and no declared long work excuses that.

    Args:
        records: by rank; a rank that left in order does not count.
        now: seconds since 1970.
        limit_s: how long nothing may happen.
    """
    running = [record for record in records.values() if not record.ended]
    return bool(running) and all(now > max(record.moved + limit_s, record.until) for record in running)


def condition(record: Record, now: float, *, state: str | None, silent_s: float = 5.0) -> Condition:
    """What is the matter with a rank.

    Args:
        record: its record.
        now: seconds since 1970.
        state: what the kernel says of its process, "" when it is gone; None where it runs on another host.
        silent_s: without a sign of life of its watchdog for so long, something is wrong.
    """
    if state == "" or state == "Z":
        return "gone"
    if state is not None and state in "tT":
        return "stopped"
    if now - record.beat > silent_s:
        return "silent"
    return "waits" if (record.waits or record.phase == "exchange") and not record.busy else "works"


def culprit(records: Mapping[int, Record], conditions: Mapping[int, Condition]) -> int:
    """The rank that the others wait for; where all wait, the one that is behind, or has waited for longest."""

    def order(rank: int) -> tuple[int, int, float]:
        record = records[rank]
        return _WORST_FIRST.index(conditions[rank]), record.step, record.since

    return min((rank for rank in records if not records[rank].ended), key=order)


def said(condition: Condition) -> str:
    """A condition as the end of a sentence."""
    return _SAID[condition]


def table(records: Mapping[int, Record], conditions: Mapping[int, Condition], now: float) -> str:
    """One line for each rank: where it is, since when, and what it does there."""
    width = max(len(record.host) for record in records.values())
    return "\n".join(
        f"  rank {rank:>4}  {record.host:<{width}}  step {record.step:>6}  {record.phase:<8}  "
        f"for {max(0.0, now - record.since):7.1f} s  {said(conditions[rank])}"
        for rank, record in sorted(records.items())
        if not record.ended
    )
