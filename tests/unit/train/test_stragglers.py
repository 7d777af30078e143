"""Who is slowest, where, and what it costs: from made-up times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.phases import PHASES
from hvdtrain.train.stragglers import add, slowest

HOSTS = ["gpu01", "gpu01", "gpu02", "gpu02"]


def row(**seconds):
    return tuple(seconds.get(phase, 0.0) for phase in PHASES)


def test_the_rank_that_the_others_wait_for_is_named_with_its_phase_and_cost():
    quick = row(data=0.1, forward=0.4, exchange=0.5)
    found = slowest((quick, quick, row(data=0.6, forward=0.4), quick), hosts=HOSTS)
    assert (found.rank, found.host, found.phase) == (2, "gpu02", "data")
    assert found.cost_percent == pytest.approx(50.0)
    assert found.sentence() == "rank 2 on gpu02 is slowest, in data; it costs 50.0 %"


def test_waiting_makes_no_rank_slow():
    waits = row(forward=0.1, exchange=9.0)
    assert slowest((waits, row(forward=0.2)), hosts=HOSTS).rank == 1


def test_a_phase_that_is_slow_for_all_is_not_the_reason():
    found = slowest((row(forward=2.0, save=0.1), row(forward=2.0, save=0.3), row(forward=2.0, save=0.1)), hosts=HOSTS)
    assert (found.rank, found.phase) == (1, "save")


def test_a_rank_alone_is_not_slow_and_neither_is_a_step_without_time():
    assert slowest((row(forward=1.0),), hosts=HOSTS) is None
    assert slowest((row(), row()), hosts=HOSTS) is None
    assert slowest((), hosts=HOSTS) is None


SECONDS = st.tuples(*[st.floats(0, 100)] * len(PHASES))


@given(st.lists(SECONDS, min_size=2, max_size=4), st.integers(1, 5))
def test_the_same_steps_again_change_nothing(rows, repeats):
    once = tuple(rows)
    total = ()
    for _ in range(repeats):
        total = add(total, once)
    found, alone = slowest(total, hosts=HOSTS), slowest(once, hosts=HOSTS)
    assert (found is None) == (alone is None)
    if alone:
        assert -1e-6 <= alone.cost_percent <= 100 + 1e-6
        assert found.cost_percent == pytest.approx(alone.cost_percent, abs=1e-6)
