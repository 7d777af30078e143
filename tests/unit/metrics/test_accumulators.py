"""The algebra of means: an identity, associativity, and weighting by counts."""

import math

from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.metrics import Mean, compute, include, reduce

WHOLE = st.builds(Mean, st.integers(-(10**6), 10**6).map(float), st.integers(0, 10**6).map(float))


@given(WHOLE, WHOLE, WHOLE)
def test_merging_is_associative_and_commutative_and_has_an_identity(a, b, c):
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(b) == b.merge(a)
    assert a.merge(Mean()) == a


@given(st.lists(st.lists(st.integers(-100, 100), min_size=1, max_size=5), min_size=1, max_size=5))
def test_means_of_parts_join_into_the_mean_of_the_whole(parts):
    total = {}
    for part in parts:
        total = include(total, {"loss": sum(part) / len(part)}, len(part))
    whole = [value for part in parts for value in part]
    assert math.isclose(compute(total)["loss"], sum(whole) / len(whole), abs_tol=1e-9)


def test_the_mean_of_nothing_is_not_a_number():
    assert math.isnan(Mean().compute())


def test_names_that_one_side_lacks_are_kept():
    before = {"a": Mean(1, 1)}
    assert include(before, {"b": 2.0}, 1) == {"a": Mean(1, 1), "b": Mean(2, 1)}
    assert before == {"a": Mean(1, 1)}


def test_one_rank_reduces_to_itself_and_nothing_to_nothing():
    collectives = Collectives(SoloTransport())
    some = {"loss": Mean(3.0, 2.0), "accuracy": Mean(1.0, 2.0)}
    assert reduce(some, collectives) == some
    assert reduce({}, collectives) == {}
