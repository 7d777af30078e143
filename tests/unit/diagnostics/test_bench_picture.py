"""A picture of a report, where matplotlib is installed."""

import pytest
from bench_samples import QUIET, around

from hvdtrain.diagnostics.bench import overhead
from hvdtrain.diagnostics.bench.picture import draw
from hvdtrain.errors import UsageError

SIDES = {side: around(50) for side in ("horovod_loop", "hvdtrain", "hvdtrain_sentinel")}
REPORT = overhead.report_of({"step": SIDES, "step_cpu": SIDES}, QUIET)


@pytest.mark.parametrize("name", ["overhead.svg", "overhead.png"])
def test_a_picture_is_written(name, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    draw(REPORT, tmp_path / name)
    assert (tmp_path / name).stat().st_size > 1000


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(UsageError, match=r"pip install 'hvdtrain\[plot\]'"):
        draw(REPORT, tmp_path / "x.png")
