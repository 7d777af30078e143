"""However an entry is cut, every tensor is in one file, no file is empty, and the reader finds the same ones."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.checkpoint.parts import MOST_PARTS, PART_BYTES, count_for, cut, entry_of, file_name, threads
from hvdtrain.checkpoint.tensorfile import layout, nbytes

dtypes = st.sampled_from(["float64", "float32", "bfloat16", "uint8"])
shapes = st.lists(st.integers(0, 3000), max_size=2)
tables = st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=30)


def leaves_of(table):
    return [(f"t{number}", dtype, shape) for number, (dtype, shape) in enumerate(table)]


def of_bytes(*lengths):
    return leaves_of([("uint8", [length]) for length in lengths])


@given(tables, st.integers(1, 40))
def test_runs_are_the_order_of_one_file_and_of_about_equal_bytes(table, count):
    leaves = leaves_of(table)
    runs = cut(leaves, count)
    assert len(runs) == count
    assert [leaf for run in runs for leaf in run] == layout(leaves)
    sizes = [sum(map(nbytes, run)) for run in runs]
    assert max(sizes) <= sum(sizes) / count + max(map(nbytes, leaves))


@given(tables)
def test_no_file_is_empty(table):
    leaves = leaves_of(table)
    count = count_for(leaves)
    assert 1 <= count <= MOST_PARTS
    assert all(cut(leaves, count))


@pytest.mark.parametrize(
    ("lengths", "count"),
    [
        ((1,), 1),
        ((0, 0), 1),
        ((2 * PART_BYTES - 1,), 1),
        ((PART_BYTES, PART_BYTES - 1), 1),
        ((PART_BYTES, PART_BYTES), 2),
        ((100 * PART_BYTES,), 1),
        ((90 * PART_BYTES, PART_BYTES), 2),
        ((PART_BYTES,) * 100, MOST_PARTS),
    ],
)
def test_large_entries_have_more_files_as_far_as_tensors_allow(lengths, count):
    assert count_for(of_bytes(*lengths)) == count


@pytest.mark.parametrize("count", [1, 2, 32])
def test_a_name_leads_back_to_its_entry(count):
    names = [file_name("ema_2", number, count) for number in range(count)]
    assert len(set(names)) == count
    assert sorted(names) == names
    assert {entry_of(name) for name in names} == {"ema_2"}
    assert entry_of("state.json") == "state"


def test_little_work_has_one_thread_and_more_has_several():
    def meet():
        barrier.wait(timeout=10)
        return threading.get_ident()

    for total_bytes, count in ((0, 1), (PART_BYTES - 1, 1), (PART_BYTES, 2)):
        barrier = threading.Barrier(count)
        with threads(total_bytes) as pool:
            assert len({future.result() for future in [pool.submit(meet) for _ in range(count)]}) == count


def test_on_leaving_nothing_runs_and_what_had_not_begun_never_does():
    ended, begun, never = [], threading.Event(), threading.Event()

    def task():
        begun.set()
        never.wait(0.1)
        ended.append("the first")

    with threads(0) as pool:
        pool.submit(task)
        pool.submit(ended.append, "the second")
        begun.wait(10)
    assert ended == ["the first"]
