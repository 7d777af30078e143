"""A report as a picture: for each case the sides' medians with their intervals (extra: `plot`).

draw(report, Path("step.svg"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtrain.diagnostics.bench.report import Case, Report
from hvdtrain.errors import UsageError


def require(file: Path) -> None:
    """Refuse a picture that could not be drawn.

    Raises:
        UsageError: matplotlib is not there, or does not know the file's ending.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"draw {file}", found=str(error), remedy="pip install 'hvdtrain[plot]'") from error
    known = FigureCanvasAgg(Figure()).get_supported_filetypes()
    if file.suffix.removeprefix(".") not in known:
        found = f"the ending {file.suffix!r} is none of {', '.join(sorted(known))}"
        raise UsageError(f"draw {file}", found=found, remedy=f"--plot {file.with_suffix('.png')}")


def draw(report: Report, file: Path) -> None:
    """Write the picture; its format is that of the file's ending.

    Raises:
        UsageError: matplotlib is not there, or does not know the ending.
    """
    require(file)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(report.cases))
    lines = -(-len(report.cases) // columns)
    figure = Figure(figsize=(6.0 * columns, 0.8 + 2.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, case in zip(axes, report.cases, strict=False):
        _draw_case(axis, case)
    for axis in axes[len(report.cases) :]:
        axis.set_visible(False)
    where = report.circumstances
    state = " (not a quiet machine)" if where.busy else ""
    figure.suptitle(f"bench {report.question}: medians of {where.starts} starts, load {where.load_before}{state}")
    figure.savefig(file)


def _draw_case(axis: Any, case: Case) -> None:
    for row, side in enumerate(case.samples):
        one = case.estimate(side)
        if one.low is not None and one.high is not None:
            axis.plot([one.low, one.high], [row, row], color="tab:gray", linewidth=3, solid_capstyle="butt")
        axis.plot([one.median], [row], "o", color="tab:blue" if side.startswith("hvdtrain") else "black")
    axis.set_yticks(range(len(case.samples)), list(case.samples))
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_title(case.name)
    axis.set_xlabel(case.unit)
