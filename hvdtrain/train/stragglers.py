"""The slowest rank: where it spends more time than the others, and what that costs all of them.

A step takes as long as its slowest rank works; the others wait for it. So working and waiting are kept apart: the time
of phase `exchange` is waiting, all other phases are work. What a rank costs is how much longer it works than the
median of the others, in percent of the time that passed.

    window = add(window, result.times)                     # at each step; the times ride in the step signal
    found = slowest(window, hosts=run.hosts)               # Straggler(rank=1, host="gpu07", phase="data", ...)
    found.sentence()                                       # "rank 1 on gpu07 is slowest, in data; it costs 12.5 %"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from hvdtrain.phases import PHASES

Times: TypeAlias = tuple[tuple[float, ...], ...]  # (size, phases), in seconds
_WAITING = PHASES.index("exchange")


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The slowest rank of some steps.

    Attributes:
        rank: which.
        host: where.
        phase: in which it lost most against the median of the others.
        cost_percent: of the time that passed, how much would be saved if it worked like the others.
    """

    rank: int
    host: str
    phase: str
    cost_percent: float

    def sentence(self) -> str:
        """For the log."""
        return f"rank {self.rank} on {self.host} is slowest, in {self.phase}; it costs {self.cost_percent:.1f} %"

    def fields(self) -> dict[str, str | int | float]:
        """For a record."""
        return {
            "slowest_rank": self.rank,
            "slowest_host": self.host,
            "slowest_phase": self.phase,
            "slowest_cost_percent": self.cost_percent,
        }


def add(window: Times, times: Times) -> Times:
    """The sums, by rank and phase."""
    if not window:
        return times
    return tuple(
        tuple(a + b for a, b in zip(left, right, strict=True)) for left, right in zip(window, times, strict=True)
    )


def slowest(times: Times, *, hosts: Sequence[str]) -> Straggler | None:
    """Who works longest; None for a rank alone, or when no time has passed.

    Args:
        times: seconds by rank and phase.
        hosts: of the ranks.
    """
    passed_s = max((sum(row) for row in times), default=0.0)
    if len(times) < 2 or passed_s <= 0.0:
        return None
    work = [sum(row) - row[_WAITING] for row in times]
    rank = max(range(len(work)), key=work.__getitem__)
    others = [row for other, row in enumerate(times) if other != rank]
    lost = [
        spent - median(row[index] for row in others) if index != _WAITING else float("-inf")
        for index, spent in enumerate(times[rank])
    ]
    excess_s = work[rank] - median(sum(row) - row[_WAITING] for row in others)
    return Straggler(
        rank=rank,
        host=hosts[rank],
        phase=PHASES[lost.index(max(lost))],
        cost_percent=100.0 * excess_s / passed_s,
    )
