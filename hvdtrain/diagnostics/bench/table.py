"""A report as text: a table for each case, what follows from it, and the circumstances.

print(table(report), end="")
"""

from __future__ import annotations

from collections.abc import Sequence

from hvdtrain.diagnostics.bench.report import Case, Finding, Report
from hvdtrain.diagnostics.bench.statistics import LEAST, WIDEST, Estimate

UNITS = {"bytes_per_s": (1e-6, "MB/s"), "percent": (1.0, "%")}


def table(report: Report) -> str:
    """The whole report, for a terminal."""
    parts = [_cases(report), _speedups(report), _findings(report), _circumstances(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def number(value: float) -> str:
    """Three significant digits or whole numbers, without an exponent."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def spread(one: Estimate) -> str:
    """The interval, or why there is none."""
    if one.low is None or one.high is None:
        return f"none of {one.count}"
    return f"{number(one.low)} to {number(one.high)}"


def _cases(report: Report) -> str:
    rows: list[tuple[str, ...]] = [(report.group, "side", "median", "95 % interval", "samples/s", "")]
    for case in report.cases:
        rows += _rows(case)
    if all(case.global_batch_size is None for case in report.cases):
        rows = [(*row[:4], row[5]) for row in rows]
    return aligned(rows)


def _rows(case: Case) -> list[tuple[str, ...]]:
    factor, unit = UNITS.get(case.unit, (1.0, case.unit))
    rows: list[tuple[str, ...]] = []
    for index, side in enumerate(case.samples):
        one = case.estimate(side)
        scaled = Estimate(
            median=one.median * factor,
            low=None if one.low is None else one.low * factor,
            high=None if one.high is None else one.high * factor,
            count=one.count,
        )
        wide = "wide" if one.wide else ""
        rate = "" if (per_s := case.samples_per_s(side)) is None else number(per_s)
        rows.append(("" if index else case.name, side, f"{number(scaled.median)} {unit}", spread(scaled), rate, wide))
    return rows


def _speedups(report: Report) -> str:
    if not report.geomean_speedup:
        return ""
    rows: list[tuple[str, ...]] = [("hvdtrain is faster than", "by a factor of", "95 % interval")]
    rows += [(side, number(one.median), spread(one)) for side, one in report.geomean_speedup.items()]
    return aligned(rows)


def _findings(report: Report) -> str:
    return "\n".join(_finding(finding, busy=report.circumstances.busy) for finding in report.findings)


def _finding(finding: Finding, *, busy: bool) -> str:
    limit = "" if finding.at_most is None else f", at most {number(finding.at_most)}"
    limit += "" if finding.at_least is None else f", at least {number(finding.at_least)}"
    figure = f"{number(finding.figure.median)} ({spread(finding.figure)})"
    verdict = finding.verdict(busy=busy)
    return f"{verdict.upper() if verdict else 'shown':<9}  {finding.text}: {figure}{limit}"


def _circumstances(report: Report) -> str:
    where = report.circumstances
    versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
    lines = [
        f"{where.starts} starts of each side, alternating; {where.cores} cores ({where.processor})",
        f"load {where.load_before} before, {where.load_after} after" + (": NOT A QUIET MACHINE" if where.busy else ""),
        versions,
        "flags: " + (" ".join(f"{name}={value}" for name, value in where.flags.items()) or "none"),
        *(f"{side}: {command}" for side, command in where.commands.items()),
        *report.notes,
        f"wide: an interval over {WIDEST}-fold; undecided: it holds the limit, or starts are fewer than {LEAST}",
    ]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, each column as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
