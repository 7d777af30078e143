"""A straight line through times by size: what any message costs, and what each byte adds.

line = fit({1024: 60.0, 1048576: 84_000.0})
line.intercept, line.slope                     # microseconds, microseconds per byte
line.at(262144)                                # 21_045.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """``intercept + slope * x``; neither is ever negative where it was fitted.

    Attributes:
        intercept: at zero.
        slope: for each unit of x.
        worst: the largest distance of a point from the line, as a part of the line.
    """

    intercept: float
    slope: float
    worst: float = 0.0

    def at(self, x: float) -> float:
        """Its height there."""
        return self.intercept + self.slope * x


def fit(points: Mapping[float, float]) -> Line:
    """The line with the least squares of relative distances, so that small sizes count as much as large ones.

    Raises:
        ValueError: there is no point, or one without a positive height.
    """
    if not points or min(points.values()) <= 0:
        raise ValueError(f"a line through {dict(points)}")
    candidates = [_best(points), _flat(points), _through_zero(points)]
    allowed = [line for line in candidates if line.intercept >= 0 and line.slope >= 0]
    best = min(allowed, key=lambda line: _squares(line, points))
    worst = max(abs(y - best.at(x)) / best.at(x) for x, y in points.items())
    return Line(best.intercept, best.slope, worst)


def _squares(line: Line, points: Mapping[float, float]) -> float:
    return sum((line.at(x) / y - 1.0) ** 2 for x, y in points.items())


def _best(points: Mapping[float, float]) -> Line:
    """Weighted least squares with the weights 1 / y**2; flat where all x are the same."""
    weights = {x: 1.0 / y**2 for x, y in points.items()}
    total = sum(weights.values())
    mean_x = sum(w * x for x, w in weights.items()) / total
    mean_y = sum(w * points[x] for x, w in weights.items()) / total
    spread = sum(w * (x - mean_x) ** 2 for x, w in weights.items())
    if spread <= 0.0:
        return _flat(points)
    slope = sum(w * (x - mean_x) * (points[x] - mean_y) for x, w in weights.items()) / spread
    return Line(mean_y - slope * mean_x, slope)


def _flat(points: Mapping[float, float]) -> Line:
    return Line(sum(1.0 / y for y in points.values()) / sum(1.0 / y**2 for y in points.values()), 0.0)


def _through_zero(points: Mapping[float, float]) -> Line:
    above = sum(x / y for x, y in points.items())
    below = sum((x / y) ** 2 for x, y in points.items())
    return Line(0.0, above / below) if below > 0 else _flat(points)
