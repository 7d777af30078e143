"""What every test may use: whole-text comparison with a file in tests/golden, and the long form of a matrix.

pytest tests/unit --update-golden       writes what differs (and fails no test); read the diff before you commit it
pytest tests/cluster --full             `full` is True
"""

import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
NO_SKIP = [Path(__file__).parent / part for part in ("cluster", "faults")]


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing with it")
    parser.addoption("--full", action="store_true", help="the long form of each matrix")


@pytest.fixture
def full(request):
    return request.config.getoption("--full")


@pytest.fixture
def golden(request):
    """A function `golden(name, text)` that asserts that `text` is, whole, what tests/golden/NAME holds."""

    def compare(name, text):
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no tests/golden/{name}; `pytest {request.node.nodeid} --update-golden` writes it"
        assert text == path.read_text()

    return compare


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With CI=true a cluster or fault test must run: what would be a skip is a failure."""
    report = yield
    must_run = os.environ.get("CI") == "true" and any(item.path.is_relative_to(part) for part in NO_SKIP)
    if must_run and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped, where nothing may be (CI=true): {report.longrepr}"
    return report
