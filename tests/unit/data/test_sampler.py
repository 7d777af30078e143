import json
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.data.partition import REMAINDERS, samples_of_next_step
from hvdtrain.data.permutation import Permutation
from hvdtrain.data.sampler import Sampler
from hvdtrain.errors import ConfigError, OrderError

TRILLION = 10**12


def samplers(n, *, size, global_batch_size=8, **options):
    return [
        Sampler(n, seed=5, global_batch_size=global_batch_size, rank=rank, size=size, **options) for rank in range(size)
    ]


def run(ranks, steps=None):
    """Commit up to so many steps on all ranks; what they used, in global order."""
    used = []
    for number, shares in enumerate(zip(*(rank.shares() for rank in ranks), strict=True)):
        if number == steps:
            break
        assert len({(share.epoch, share.start, share.stop) for share in shares}) == 1
        assert sum(share.samples for share in shares) == shares[0].global_samples
        used += [sample for share in shares for sample in share.indices.tolist()]
        for rank, share in zip(ranks, shares, strict=True):
            rank.commit(share)
    return used


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("size", range(1, 9))
def test_shares_are_those_of_the_arithmetic(size, remainder):
    for n, global_batch_size in product(sorted({0, 1, size - 1, size, size + 1, 97}), (1, 5, 8, 33)):
        for sampler in samplers(n, size=size, global_batch_size=global_batch_size, remainder=remainder):
            shares = list(sampler.shares())
            assert len(shares) == sampler.steps_per_epoch
            for share in shares:
                expected = samples_of_next_step(
                    n=n,
                    seed=5,
                    epoch=0,
                    consumed=share.start,
                    rank=sampler.rank,
                    size=size,
                    global_batch_size=global_batch_size,
                    remainder=remainder,
                )
                np.testing.assert_array_equal(share.indices, expected)
                sampler.commit(share)
            assert sampler.finished


@given(
    n=st.one_of(st.integers(0, 200), st.sampled_from([1009, 2003])),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    batches=st.lists(st.integers(1, 64), min_size=6, max_size=6),
    stops=st.lists(st.integers(0, 20), min_size=6, max_size=6),
    epoch=st.integers(0, 3),
)
def test_stopped_anywhere_and_resumed_at_any_size_each_sample_is_used_once(n, sizes, batches, stops, epoch):
    state, used = None, []
    for size, global_batch_size, steps in zip(sizes, batches, [*stops[: len(sizes) - 1], None], strict=False):
        ranks = samplers(n, size=size, global_batch_size=global_batch_size)
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(json.loads(json.dumps(state)))
            rank.epoch = epoch
        used += run(ranks, steps)
        assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
        state = ranks[0].state_dict()
    assert used == Permutation(n, seed=5, epoch=epoch)[0:n].tolist()
    assert state["consumed"] == n


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize(("before", "after"), [(1, 4), (2, 3), (8, 1), (3, 7)])
def test_an_epoch_of_any_policy_goes_on_at_another_size(before, after, remainder):
    whole = run(samplers(101, size=1, remainder=remainder))
    for stop in range(0, 14, 3):
        first = samplers(101, size=before, remainder=remainder)
        used = run(first, stop)
        second = samplers(101, size=after, remainder=remainder)
        for rank in second:
            rank.load_state_dict(first[0].state_dict())
        assert used + run(second) == whole


@pytest.mark.parametrize("size", range(1, 9))
def test_a_trillion_samples_are_dealt_out_alike_to_any_size(size):
    ranks = samplers(TRILLION, size=size, global_batch_size=1000)
    for rank in ranks:
        rank.load_state_dict(rank.state_dict() | {"epoch": 3, "consumed": TRILLION - 12_345})
    used = run(ranks, 5)
    assert used == Permutation(TRILLION, seed=5, epoch=3)[TRILLION - 12_345 : TRILLION - 7345].tolist()
    rest = run(ranks)
    assert len(set(used + rest)) == 12_345
    assert all(rank.finished for rank in ranks)


def test_what_was_read_ahead_and_not_committed_comes_again():
    (sampler,) = samplers(100, size=1)
    ahead = list(sampler.shares())
    sampler.commit(ahead[0])
    assert sampler.consumed == 8
    again = next(sampler.shares())
    assert again.indices.tolist() == ahead[1].indices.tolist()


def test_commits_out_of_order_or_twice_are_refused():
    (sampler,) = samplers(100, size=1)
    first, second, *_ = sampler.shares()
    with pytest.raises(OrderError, match="0 samples of epoch 0 are committed"):
        sampler.commit(second)
    sampler.commit(first)
    with pytest.raises(OrderError):
        sampler.commit(first)
    assert sampler.consumed == 8


def test_an_epoch_must_be_committed_before_the_next_begins():
    (sampler,) = samplers(16, size=1)
    first, second = sampler.shares()
    sampler.commit(first)
    with pytest.raises(OrderError, match="1 steps of epoch 0 are not committed"):
        sampler.next_epoch()
    sampler.commit(second)
    sampler.next_epoch()
    assert (sampler.epoch, sampler.consumed) == (1, 0)
    assert next(sampler.shares()).indices.tolist() != first.indices.tolist()


@pytest.mark.parametrize("n", [0, 7])
def test_without_a_whole_step_there_is_none(n):
    (sampler,) = samplers(n, size=1, remainder="drop")
    assert sampler.steps_per_epoch == 0
    assert sampler.finished
    assert list(sampler.shares()) == []


def test_shares_cannot_be_changed():
    (sampler,) = samplers(16, size=1)
    with pytest.raises(ValueError, match="read-only"):
        next(sampler.shares()).indices[0] = 3


@pytest.mark.parametrize(
    ("change", "told"),
    [({"n": 101}, "n was 101 and is 100"), ({"seed": 6}, "seed was 6 and is 5"), ({"order": "sequential"}, "order")],
)
def test_a_state_of_another_order_is_refused(change, told):
    (sampler,) = samplers(100, size=1)
    with pytest.raises(ConfigError, match=told):
        sampler.load_state_dict(sampler.state_dict() | change)


@pytest.mark.parametrize("damage", [{"consumed": 101}, {"consumed": -1}, {"epoch": 1.5}, {"epoch": True}, {"n": None}])
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    (sampler,) = samplers(100, size=1)
    with pytest.raises(ConfigError):
        sampler.load_state_dict(sampler.state_dict() | damage)
    assert (sampler.epoch, sampler.consumed) == (0, 0)


def test_a_state_that_lacks_something_is_refused():
    (sampler,) = samplers(100, size=1)
    with pytest.raises(ConfigError, match="no state of a sampler"):
        sampler.load_state_dict({"epoch": 1})


def test_all_impossible_numbers_come_in_one_message():
    with pytest.raises(ConfigError) as caught:
        Sampler(-1, seed=0, global_batch_size=0, rank=2, size=2, remainder="keeep")  # type: ignore[arg-type]
    for part in ("-1 samples", "batch of 0", "rank 2 of 2", "keeep"):
        assert part in str(caught.value)


MEASURE = """
import resource, time
import numpy, hvdtrain.data.sampler as module
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
sampler = module.Sampler(10**12, seed=1, global_batch_size=4096, rank=3, size=8)
sampler.load_state_dict(sampler.state_dict() | {"epoch": 5, "consumed": 10**12 // 2})
share = next(sampler.shares())
elapsed = time.perf_counter() - start
print(share.samples, elapsed, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_sampler_over_a_trillion_samples_needs_next_to_no_memory():
    text = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    samples, _, grown_mib = text.split()
    assert int(samples) == 512
    assert float(grown_mib) < 50
