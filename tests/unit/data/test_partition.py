from itertools import chain, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.data.partition import (
    REMAINDERS,
    divide,
    evaluation_batches,
    next_step,
    samples_of_next_step,
    share_of,
    steps_left,
)

GRID = [(n, size) for size in range(1, 9) for n in sorted({0, 1, size - 1, size, size + 1, 2, 13, 31, 97})]
BATCH_SIZES = [1, 2, 3, 7, 8, 64]


@given(st.integers(0, 2**62), st.integers(1, 5000))
def test_parts_are_contiguous_cover_everything_and_the_first_have_one_more(count, size):
    parts = [divide(count, rank=rank, size=size) for rank in range(size)]
    assert parts[0].start == 0
    assert parts[-1].stop == count
    assert all(before.stop == after.start for before, after in pairwise(parts))
    each, rest = divmod(count, size)
    assert [part.stop - part.start for part in parts] == [each + 1] * rest + [each] * (size - rest)


def steps_of(n, global_batch_size, remainder, consumed=0):
    steps = []
    while step := next_step(n=n, consumed=consumed, global_batch_size=global_batch_size, remainder=remainder):
        steps.append(step)
        consumed = step.stop
    return steps


@pytest.mark.parametrize("remainder", REMAINDERS)
@given(n=st.integers(0, 300), global_batch_size=st.integers(1, 100), data=st.data())
def test_steps_follow_each_other_and_are_as_many_as_announced(remainder, n, global_batch_size, data):
    consumed = data.draw(st.integers(0, n))
    steps = steps_of(n, global_batch_size, remainder, consumed)
    left = steps_left(n=n, consumed=consumed, global_batch_size=global_batch_size, remainder=remainder)
    assert left == len(steps)
    assert [step.start for step in steps] == [consumed + i * global_batch_size for i in range(len(steps))]
    end = steps[-1].stop if steps else consumed
    if remainder == "keep":
        assert end == n
    elif remainder == "drop":
        assert all(len(step) == global_batch_size for step in steps)
        assert n - global_batch_size < end <= n
    else:
        assert all(len(step) == global_batch_size for step in steps)
        assert n <= end < n + global_batch_size


def epoch_of(n, global_batch_size, remainder, size, consumed=0, seed=4, epoch=1):
    """The samples of each step over all ranks, in rank order."""
    for step in steps_of(n, global_batch_size, remainder, consumed):
        shares = [
            samples_of_next_step(
                n=n,
                seed=seed,
                epoch=epoch,
                consumed=step.start,
                rank=rank,
                size=size,
                global_batch_size=global_batch_size,
                remainder=remainder,
            )
            for rank in range(size)
        ]
        assert [len(share) for share in shares] == [len(share_of(step, rank=r, size=size)) for r in range(size)]
        yield np.concatenate(shares).tolist()


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_each_sample_is_used_exactly_once_and_the_order_is_that_of_one_rank(remainder):
    for (n, size), global_batch_size in product(GRID, BATCH_SIZES):
        steps = list(epoch_of(n, global_batch_size, remainder, size))
        assert steps == list(epoch_of(n, global_batch_size, remainder, 1)), (n, size, global_batch_size)
        joined = list(chain.from_iterable(steps))
        unpadded = joined[:n]
        assert len(set(unpadded)) == len(unpadded)
        if remainder == "drop":
            assert len(joined) == n - n % global_batch_size
        else:
            assert sorted(unpadded) == list(range(n))
        assert joined[n:] == [unpadded[i % n] for i in range(len(joined) - n)]  # pad begins the epoch again


def test_the_order_of_steps_does_not_depend_on_the_batch_size():
    for n, size in GRID:
        orders = {tuple(chain.from_iterable(epoch_of(n, b, "keep", size))) for b in BATCH_SIZES}
        assert len(orders) == 1


@given(n=st.integers(0, 200), batch_size=st.integers(1, 50), size=st.integers(1, 9))
def test_an_evaluation_visits_every_sample_once(n, batch_size, size):
    by_rank = [evaluation_batches(n, batch_size=batch_size, rank=rank, size=size) for rank in range(size)]
    assert [sample for batches in by_rank for batch in batches for sample in batch] == list(range(n))
    assert all(0 < len(batch) <= batch_size for batches in by_rank for batch in batches)
    assert max(map(len, by_rank)) - min(map(len, by_rank)) <= 1
