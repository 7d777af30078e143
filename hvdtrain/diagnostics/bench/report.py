"""What a question has found: numbers of each start, estimates, findings against their limits, circumstances.

report = Report(question="overhead", group="cases", cases=(Case("step", "us", samples),), findings=(...))
report.as_json()    # {"cases": {"step": {"hvdtrain": {"median_us": 41.0, "ci95_us": [39.2, 44.8]}}}, ...}
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.diagnostics.bench.circumstances import Circumstances
from hvdtrain.diagnostics.bench.statistics import Estimate, Verdict, estimate, geometric_mean, judge, ratio


@dataclass(frozen=True)
class Case:
    """One thing that was measured on several sides.

    Attributes:
        name: of a model, a size, a phase.
        unit: of the numbers, as it ends their names: ``ms``, ``us``, ``s``, ``percent``, ``bytes_per_s``.
        samples: side -> one number per start; the same position is the same round on all sides.
        global_batch_size: samples of one step over all ranks, where the numbers are times of steps; else None.
    """

    name: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    global_batch_size: int | None = None

    def estimate(self, side: str) -> Estimate:
        """Median and interval of one side."""
        return estimate(self.samples[side])

    def ratio(self, above: str, below: str) -> Estimate:
        """One side over another."""
        return ratio(self.samples[above], self.samples[below])

    def as_json(self) -> dict[str, Any]:
        """Side -> its median and interval."""
        return {side: _figure(self.estimate(side), f"_{self.unit}") | self._rate(side) for side in self.samples}

    def _rate(self, side: str) -> dict[str, float]:
        rate = self.samples_per_s(side)
        return {} if rate is None else {"samples_per_s": rate}

    def samples_per_s(self, side: str) -> float | None:
        """Samples per second over all ranks, where the numbers are milliseconds per step."""
        batch = self.global_batch_size
        return None if batch is None else 1e3 * batch / self.estimate(side).median


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A figure and the limit that it is to keep.

    Attributes:
        text: what it is, as a phrase.
        figure: median and interval.
        at_most: the limit from above, or None.
        at_least: the limit from below, or None; without either, the figure is only shown.
        needs_quiet: a time that other work on the machine lengthens, so that a busy machine cannot refute its limit.
    """

    text: str
    figure: Estimate
    at_most: float | None = None
    at_least: float | None = None
    needs_quiet: bool = False

    def verdict(self, *, busy: bool) -> Verdict | None:
        """Whether the limit is kept, on a machine that was busy or not; None where there is no limit."""
        if self.at_most is None and self.at_least is None:
            return None
        verdict = judge(self.figure, at_most=self.at_most, at_least=self.at_least)
        return "undecided" if busy and self.needs_quiet and verdict == "refuted" else verdict

    def as_json(self, *, busy: bool) -> dict[str, Any]:
        """Text, figure, limit and verdict."""
        limits = {"at_most": self.at_most, "at_least": self.at_least}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        return {"text": self.text, **_figure(self.figure, ""), **given, "verdict": self.verdict(busy=busy)}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The answer to one question.

    Attributes:
        question: its name.
        group: what its cases are, in the plural: ``models``, ``sizes``, ``cases``.
        cases: what was measured.
        findings: what follows from it.
        circumstances: where and how.
        notes: what a reader must know.
        geomean_speedup: side -> by what factor hvdtrain is faster, over all cases; where the question has that.
    """

    question: str
    group: str
    cases: Sequence[Case]
    circumstances: Circumstances
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    geomean_speedup: Mapping[str, Estimate] = field(default_factory=dict)

    def case(self, name: str) -> Case:
        """One of the cases."""
        return next(case for case in self.cases if case.name == name)

    def as_json(self) -> dict[str, Any]:
        """The whole report; the keys of `group` and `geomean_speedup` are what scripts read."""
        shown: dict[str, Any] = {self.group: {case.name: case.as_json() for case in self.cases}}
        if self.geomean_speedup:
            shown["geomean_speedup"] = {side: one.median for side, one in self.geomean_speedup.items()}
            shown["geomean_speedup_ci95"] = {side: _interval(one) for side, one in self.geomean_speedup.items()}
        return {
            "question": self.question,
            **shown,
            "findings": [finding.as_json(busy=self.circumstances.busy) for finding in self.findings],
            "circumstances": self.circumstances.as_json(),
            "notes": list(self.notes),
            "samples": {case.name: {side: list(of) for side, of in case.samples.items()} for case in self.cases},
        }


def speedups(cases: Sequence[Case], reference: str) -> dict[str, Estimate]:
    """Side -> by what factor the reference is faster than it, in the geometric mean over the cases that have both."""
    sides = dict.fromkeys(side for case in cases for side in case.samples if side != reference)
    return {side: _speedup(cases, side, reference) for side in sides}


def _speedup(cases: Sequence[Case], side: str, reference: str) -> Estimate:
    both = [case.samples for case in cases if side in case.samples and reference in case.samples]
    ratios = [ratio(samples[side], samples[reference]) for samples in both]
    pairs = [[a / b for a, b in zip(samples[side], samples[reference], strict=True)] for samples in both]
    return geometric_mean(ratios, pairs)


def differences(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The difference of the medians, with the interval of the differences within rounds, widened to hold it."""
    pairs = estimate([a - b for a, b in zip(above, below, strict=True)])
    centre = statistics.median(above) - statistics.median(below)
    low = None if pairs.low is None else min(pairs.low, centre)
    high = None if pairs.high is None else max(pairs.high, centre)
    return Estimate(median=centre, low=low, high=high, count=pairs.count)


def _interval(one: Estimate) -> list[float] | None:
    return None if one.low is None or one.high is None else [one.low, one.high]


def _figure(one: Estimate, suffix: str) -> dict[str, Any]:
    return {f"median{suffix}": one.median, f"ci95{suffix}": _interval(one)}
