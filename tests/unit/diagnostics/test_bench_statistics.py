"""Medians, exact intervals, paired ratios, and verdicts that may be refused."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.diagnostics.bench.statistics import LEAST, Estimate, estimate, geometric_mean, judge, rank_of_bound, ratio

NUMBERS = st.lists(st.floats(0.001, 1000), min_size=1, max_size=40)


def of(low, high):
    return Estimate(median=(low + high) / 2, low=low, high=high, count=9)


def test_bounds_are_those_of_the_binomial_distribution():
    # David and Nagaraja 2003; Hahn and Meeker 1991, table A.15
    known = {5: None, 6: 1, 7: 1, 8: 1, 9: 2, 11: 2, 12: 3, 15: 4, 20: 6, 25: 8, 50: 18, 100: 40}
    assert {count: rank_of_bound(count) for count in known} == known


def test_the_interval_holds_the_median_in_95_of_100_repetitions():
    draw = random.Random(1)
    for count in (LEAST, 9, 15):
        held = 0
        for _ in range(2000):
            one = estimate([draw.lognormvariate(0, 1) for _ in range(count)])  # its true median is 1
            held += one.low <= 1 <= one.high
        assert held / 2000 > 0.94


@given(NUMBERS)
def test_an_interval_is_there_from_six_numbers_on_and_holds_the_median(numbers):
    one = estimate(numbers)
    assert (one.low is None) == (one.high is None) == (len(numbers) < LEAST)
    assert one.low is None or one.low <= one.median <= one.high


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=LEAST, max_size=20))
def test_a_ratio_is_that_of_the_medians_and_lies_in_its_interval(pairs):
    above, below = zip(*pairs, strict=True)
    one = ratio(above, below)
    assert one.median == estimate(above).median / estimate(below).median
    assert one.low <= one.median <= one.high


def test_what_changes_from_round_to_round_falls_out_of_a_ratio():
    machine = [1.0, 1.4, 2.1, 0.9, 1.7, 3.0, 1.2]  # how slow the machine is in each round
    one = ratio([3.0 * slow for slow in machine], [2.0 * slow for slow in machine])
    assert (one.low, one.median, one.high) == pytest.approx((1.5, 1.5, 1.5))
    assert estimate([3.0 * slow for slow in machine]).wide


def test_numbers_of_different_rounds_have_no_ratio():
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0, 2.0], [1.0])


def test_geometric_mean_over_cases():
    pairs = [[2.0] * 7, [8.0] * 7]
    one = geometric_mean([estimate(row) for row in pairs], pairs)
    assert (one.low, one.median, one.high, one.count) == pytest.approx((4.0, 4.0, 4.0, 7))


@pytest.mark.parametrize(
    ("figure", "limit", "verdict"),
    [
        (of(0.90, 0.99), {"at_most": 1.0}, "held"),
        (of(0.90, 1.00), {"at_most": 1.0}, "held"),
        (of(1.01, 1.10), {"at_most": 1.0}, "refuted"),
        (of(0.95, 1.05), {"at_most": 1.0}, "undecided"),
        (of(1.30, 1.40), {"at_least": 1.25}, "held"),
        (of(1.00, 1.20), {"at_least": 1.25}, "refuted"),
        (of(1.20, 1.30), {"at_least": 1.25}, "undecided"),
        (of(1.30, 2.00), {"at_least": 1.25}, "held"),  # wide, and all of it is above
        (of(0.02, 0.15), {"at_most": 1.0}, "held"),
        (of(-9.0, 40.0), {"at_most": 50.0}, "held"),
        (of(9.0, 60.0), {"at_most": 50.0}, "undecided"),
        (estimate([0.5] * 5), {"at_most": 1.0}, "undecided"),  # too few
        (estimate([0.5] * 6), {"at_most": 1.0}, "held"),
    ],
)
def test_verdicts(figure, limit, verdict):
    assert judge(figure, **limit) == verdict
