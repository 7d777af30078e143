"""Medians with exact intervals, ratios of paired measurements, and verdicts that may be "undecided".

A number here is the result of one start of one side. Numbers of the same position were measured in the same round,
one after the other, so that a ratio is taken pair by pair and what slowly changes on the machine falls out of it.

    estimate([10.1, 9.9, 10.4, 10.0, 9.8, 10.2])       # Estimate(median=10.05, low=9.8, high=10.4, count=6)
    ratio(slow, fast).low                              # 1.31
    judge(ratio(slow, fast), at_least=1.25)            # "held", "refuted" or "undecided"

The interval is that of order statistics (David and Nagaraja 2003, Order Statistics, section 7.1): it holds whatever
the distribution is. Below six numbers there is none of 95 %, and so no conclusion.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

CONFIDENCE = 0.95
LEAST = 6  # numbers, below which no two of them enclose the median in 95 of 100 cases
WIDEST = 1.25  # upper over lower end of an interval, beyond which a median is a rough figure

Verdict: TypeAlias = Literal["held", "refuted", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median and where it lies in 95 of 100 repetitions.

    Attributes:
        median: of the numbers.
        low: lower end of the interval; None where there are too few numbers for one.
        high: upper end, likewise.
        count: how many numbers.
    """

    median: float
    low: float | None
    high: float | None
    count: int

    @property
    def wide(self) -> bool:
        """Whether the interval is missing, or so wide that the median alone says little."""
        return self.low is None or self.high is None or self.low <= 0 or self.high / self.low > WIDEST


def rank_of_bound(count: int, confidence: float = CONFIDENCE) -> int | None:
    """Which of `count` sorted numbers, counted from 1 at either end, bounds the median; None where none does."""
    tail, below = (1.0 - confidence) / 2, 0.0
    found = None
    for successes in range(count // 2):
        below += math.comb(count, successes) / 2**count  # P(at most so many numbers lie below the median)
        if below > tail:
            break
        found = successes + 1
    return found


def estimate(numbers: Sequence[float]) -> Estimate:
    """The median of at least one number, with its interval."""
    ordered = sorted(numbers)
    bound = rank_of_bound(len(ordered))
    low, high = (None, None) if bound is None else (ordered[bound - 1], ordered[-bound])
    return Estimate(median=statistics.median(ordered), low=low, high=high, count=len(ordered))


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The ratio of the two medians, with the interval of the ratios within rounds.

    Where these two disagree, the interval is widened to hold the ratio of the medians.

    Raises:
        ValueError: the two are not of the same rounds.
    """
    pairs = estimate([a / b for a, b in zip(above, below, strict=True)])
    of_medians = statistics.median(above) / statistics.median(below)
    low = None if pairs.low is None else min(pairs.low, of_medians)
    high = None if pairs.high is None else max(pairs.high, of_medians)
    return Estimate(median=of_medians, low=low, high=high, count=pairs.count)


def geometric_mean(ratios: Sequence[Estimate], pairs: Sequence[Sequence[float]]) -> Estimate:
    """The geometric mean of ratios over several cases, with the interval of the means within rounds.

    Args:
        ratios: one for each case.
        pairs: for each case, the ratios within rounds: (cases, rounds).
    """
    rounds = estimate([statistics.geometric_mean(row) for row in zip(*pairs, strict=True)])
    centre = statistics.geometric_mean([one.median for one in ratios])
    low = None if rounds.low is None else min(rounds.low, centre)
    high = None if rounds.high is None else max(rounds.high, centre)
    return Estimate(median=centre, low=low, high=high, count=rounds.count)


def judge(figure: Estimate, *, at_most: float | None = None, at_least: float | None = None) -> Verdict:
    """Whether a figure keeps within one limit; undecided where its interval holds the limit, or is missing.

    An interval is too wide for a conclusion when it holds the limit; one that is ten times as wide as its median and
    lies beyond the limit decides.

    Args:
        figure: median and interval.
        at_most: the limit from above, or None.
        at_least: the limit from below, or None.
    """
    if figure.low is None or figure.high is None:
        return "undecided"
    if at_most is not None:
        return "held" if figure.high <= at_most else "refuted" if figure.low > at_most else "undecided"
    assert at_least is not None, "one limit"
    return "held" if figure.low >= at_least else "refuted" if figure.high < at_least else "undecided"
