import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.data.permutation import MAX_SAMPLES, Permutation
from hvdtrain.errors import ConfigError

SIZES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 97, 100, 101, 255, 256, 257, 1437, 4099, 65536, 65537, 10**6 + 3]


@pytest.mark.parametrize("n", SIZES)
def test_every_sample_stands_at_one_position(n):
    order = Permutation(n, seed=3, epoch=2)[0:n]
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


@given(st.integers(2, 3000), st.integers(-(2**70), 2**70), st.integers(0, 10**6))
def test_it_is_a_bijection_for_any_key(n, seed, epoch):
    assert np.bincount(Permutation(n, seed=seed, epoch=epoch)[0:n], minlength=n).tolist() == [1] * n


@given(st.integers(1, MAX_SAMPLES), st.integers(0, 2**32), st.data())
def test_a_slice_is_a_part_of_the_whole_and_stays_in_range(n, seed, data):
    start = data.draw(st.integers(0, n - 1))
    order = Permutation(n, seed=seed, epoch=0)
    samples = order[start : start + 200]
    assert len(samples) == min(200, n - start)
    assert samples.min() >= 0
    assert samples.max() < n
    assert len(set(samples.tolist())) == len(samples)
    np.testing.assert_array_equal(samples[50:60], order[start + 50 : start + 60])
    np.testing.assert_array_equal(samples[::-1], order.at(np.arange(start, start + len(samples))[::-1]))


def test_the_order_depends_on_seed_epoch_and_nothing_else():
    orders = [Permutation(1000, seed=s, epoch=e)[0:1000].tolist() for s in (0, 1, 2) for e in (0, 1, 2)]
    assert len({tuple(order) for order in orders}) == 9
    assert orders[4] == Permutation(1000, seed=1, epoch=1)[0:1000].tolist()


def test_the_order_is_the_one_that_saved_runs_used():
    """Another algorithm would continue saved runs wrongly: give it another ORDER_NAME."""
    assert Permutation(10, seed=0, epoch=0)[0:10].tolist() == [3, 1, 5, 2, 7, 6, 4, 8, 0, 9]
    assert Permutation(10**12, seed=7, epoch=3)[5:8].tolist() == [45547978311, 311940624566, 307807598648]


def test_without_shuffle_it_is_the_identity():
    order = Permutation(MAX_SAMPLES, seed=9, epoch=9, shuffle=False)
    assert order[MAX_SAMPLES - 2 : MAX_SAMPLES].tolist() == [MAX_SAMPLES - 2, MAX_SAMPLES - 1]


@pytest.mark.parametrize("n", [-1, MAX_SAMPLES + 1])
def test_impossible_lengths_are_refused(n):
    with pytest.raises(ConfigError, match=r"2\*\*62"):
        Permutation(n, seed=0, epoch=0)


@pytest.mark.parametrize("positions", [[-1], [0, 5], [4, 5]])
def test_positions_outside_are_refused(positions):
    with pytest.raises(IndexError):
        Permutation(5, seed=0, epoch=0).at(np.array(positions))


def chi_square(counts, cells, expected):
    return sum((count - expected) ** 2 / expected for count in counts) + (cells - len(counts)) * expected


@pytest.mark.parametrize("n", [3, 4, 5])
def test_all_orders_of_few_samples_are_equally_likely(n):
    cells, draws = math.factorial(n), 60 * math.factorial(n)
    counts = Counter(tuple(Permutation(n, seed=seed, epoch=0)[0:n].tolist()) for seed in range(draws))
    freedom = cells - 1
    assert chi_square(counts.values(), cells, draws / cells) < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [1437, 10**9 + 7])
def test_neighbours_in_the_order_are_unrelated(n):
    order = Permutation(n, seed=5, epoch=1)[0 : min(n, 200_000)].astype(float) / n
    bound = 5 / math.sqrt(len(order))
    for lag in (1, 2, 64, 1000):
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < bound * math.sqrt(len(order) / (len(order) - lag))


def test_a_slice_is_spread_evenly_over_the_data_set():
    n, draws = 10**12, 100_000
    counts, _ = np.histogram(Permutation(n, seed=11, epoch=4)[10**11 : 10**11 + draws], bins=100, range=(0, n))
    assert ((counts - draws / 100) ** 2 / (draws / 100)).sum() < 99 + 5 * math.sqrt(2 * 99)


def test_orders_of_two_epochs_agree_as_rarely_as_chance_says():
    n = 100_000
    agreements = [
        int((Permutation(n, seed=1, epoch=e)[0:n] == Permutation(n, seed=1, epoch=e + 1)[0:n]).sum()) for e in range(20)
    ]
    assert sum(agreements) < 20 + 5 * math.sqrt(20)  # one fixed point each is expected
