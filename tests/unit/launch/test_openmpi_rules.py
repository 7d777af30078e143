"""Open MPI is told to take a ring between hosts, in its own words, and only where nobody said something else."""

import os
from pathlib import Path

import pytest

from hvdtrain.launch.openmpi_rules import FILE, SIZES, USE, ring_between_hosts, rules, takes_ring
from hvdtrain.topology import Promise


def promise(size, local_size):
    return Promise(launcher="mpirun", source="", rank=0, size=size, local_rank=0, local_size=local_size)


def algorithm(text, size, nbytes):
    """What Open MPI reads in the rules: those of the next smaller number of ranks, and of the next smaller buffer."""
    numbers = iter(map(int, text.split()))
    assert (next(numbers), next(numbers)) == (1, 2), "one collective, the all-reduce"
    by_size = {}
    for _ in range(next(numbers)):
        ranks, count = next(numbers), next(numbers)
        by_size[ranks] = [tuple(next(numbers) for _ in range(4)) for _ in range(count)]
    assert next(numbers, None) is None
    known = [ranks for ranks in by_size if ranks <= size]
    return [row for row in by_size[max(known)] if row[0] <= nbytes][-1][1] if known else 0


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16, 32, 33, 1000])
@pytest.mark.parametrize("nbytes", [4, 786_431, 786_432, 2**20, 2**23, 2**23 + 4, 2**28])
def test_the_rules_say_what_is_predicted(size, nbytes):
    assert (algorithm(rules(), size, nbytes) == 4) == takes_ring(size, nbytes)


def test_default_buckets_go_around_a_ring_at_all_sizes_and_signals_at_none():
    assert all(takes_ring(size, 2**23) and not takes_ring(size, 2**12) for size in SIZES)


def test_an_mpi_that_starts_reads_them_and_nothing_is_left():
    env = {"HOME": "/"}
    with ring_between_hosts(env, promise(4, 2)):
        assert env[USE] == "1"
        assert Path(env[FILE]).read_text() == rules()
        descriptor = int(env[FILE].rsplit("/", 1)[1])
    assert env == {"HOME": "/"}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize(
    ("env", "promised"),
    [({}, None), ({}, promise(4, 4)), ({}, promise(4, None)), ({}, promise(None, 1)), ({USE: "0"}, promise(4, 2))],
)
def test_one_host_unknown_hosts_and_the_users_own_word_stay_as_they_are(env, promised):
    before = dict(env)
    with ring_between_hosts(env, promised):
        assert env == before
    assert env == before
