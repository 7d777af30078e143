"""What came of a start, as facts."""

from dataclasses import replace

import pytest

from hvdtrain.checks.trial import TrialFacts, all_reduce, cost

GOOD = TrialFacts(
    ranks=2,
    launcher="Open MPI 5.0.11",
    sizes=(2, 2),
    sums=(3.0, 3.0),
    init_s=0.25,
    alone_ms=1.0,
    with_horovod_ms=1.1,
    seconds=3.0,
)


def test_ranks_that_got_the_right_sum_pass():
    assert all_reduce(GOOD).status == "pass"
    assert cost(GOOD).found.startswith("a computation takes 1.10 times as long")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"sizes": (1, 1), "sums": (1.0, 1.0)}, "2 ranks reported, of sizes [1]"),
        ({"sums": (3.0, float("nan"))}, "nan"),
        ({"sizes": (2,), "sums": (3.0,)}, "1 ranks reported"),
        ({"fault": "exit status 1: RuntimeError"}, "exit status 1"),
    ],
)
def test_anything_else_fails(changes, found):
    finding = all_reduce(replace(GOOD, **changes))
    assert finding.status == "fail"
    assert found in finding.found
    assert finding.remedy


def test_a_costly_horovod_warns():
    finding = cost(replace(GOOD, with_horovod_ms=2.0))
    assert finding.status == "warn"
    assert "hvdtrain launch" in finding.remedy


def test_what_was_not_measured_passes():
    assert cost(TrialFacts(ranks=2)).status == "pass"
