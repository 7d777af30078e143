"""Successive halving: all candidates are measured shortly, the best third longer, until one is left.

rounds = halve(["a", "b", "c", "d"], lambda candidate, steps: speed_of(candidate), steps=10)
rounds[-1].best                                  # "a"

Source: Jamieson and Talwalkar 2016, Non-stochastic Best Arm Identification and Hyperparameter Optimization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

KEPT = 3  # one of so many goes on
LONGER = 2  # times as many steps in the next round

C = TypeVar("C")


@dataclass(frozen=True)
class Round(Generic[C]):
    """One round.

    Attributes:
        steps: of each measurement.
        ranking: candidates with their figures, the best first; what could not be measured is infinite.
    """

    steps: int
    ranking: tuple[tuple[C, float], ...]

    @property
    def best(self) -> C:
        """The first."""
        return self.ranking[0][0]


def halve(
    candidates: Sequence[C], measure: Callable[[C, int], float], *, steps: int, keep: int = KEPT, longer: int = LONGER
) -> list[Round[C]]:
    """The rounds of a search for the smallest figure, of which the last ranks the candidates that came so far.

    Args:
        candidates: at least one; an earlier one wins over a later one that is alike.
        measure: gives a figure for a candidate after so many steps.
        steps: of the first round.
        keep: one of so many goes on, at least two until the last round.
        longer: times as many steps in each next round.

    Raises:
        ValueError: there is no candidate.
    """
    if not candidates:
        raise ValueError("no candidates")
    rounds: list[Round[C]] = []
    left = list(candidates)
    while True:
        figures = [measure(candidate, steps) for candidate in left]
        order = sorted(range(len(left)), key=lambda index: figures[index])
        rounds.append(Round(steps, tuple((left[index], figures[index]) for index in order)))
        if len(left) <= 2:
            return rounds
        going_on = max(2, math.ceil(len(left) / keep))
        left = [left[index] for index in order[:going_on] if math.isfinite(figures[index])] or [rounds[-1].best]
        steps *= longer
