"""Every side in every round, and each equally often early and late."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.diagnostics.bench.alternation import alternate, join, order

SIDES = st.integers(1, 7).map(lambda count: tuple("abcdefg"[:count]))


@given(SIDES, st.integers(0, 50))
def test_a_round_has_each_side_once(sides, number):
    assert sorted(order(sides, number)) == list(sides)


@given(SIDES)
def test_after_two_rounds_for_each_side_all_have_had_each_place_equally_often(sides):
    places = Counter(
        (side, place) for number in range(2 * len(sides)) for place, side in enumerate(order(sides, number))
    )
    assert set(places.values()) == {2}


def test_two_sides_take_turns():
    assert ["".join(order("ab", number)) for number in range(4)] == ["ab", "ba", "ba", "ab"]


def test_alternate_measures_in_that_order_and_keeps_rounds_together():
    calls = []

    def measure(side):
        calls.append(side)
        return {"time": float(len(calls))}

    samples = alternate({side: lambda side=side: measure(side) for side in "abc"}, rounds=2)
    assert "".join(calls) == "abccba"
    assert samples == {"time": {"a": [1.0, 6.0], "b": [2.0, 5.0], "c": [3.0, 4.0]}}


def test_one_process_can_measure_a_later_round_alone():
    calls = []
    alternate({side: lambda side=side: calls.append(side) or {} for side in "abc"}, rounds=1, first=1)
    assert "".join(calls) == "cba"


def test_join_puts_starts_beside_each_other():
    parts = [{"step": {"a": 1.0, "b": 2.0}}, {"step": {"a": 3.0, "b": 4.0}, "seek": {"a": 5.0}}]
    assert join(parts) == {"step": {"a": [1.0, 3.0], "b": [2.0, 4.0]}, "seek": {"a": [5.0]}}
