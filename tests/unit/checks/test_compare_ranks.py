"""Ranks beside each other: only the minority is named, and only what cannot be one job ends it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.checks.ranks import RankFacts, compare, preflight, ranges, share_of
from hvdtrain.errors import LaunchError

USUAL = RankFacts(host="gpu01", cores=(0, 1, 2, 3), host_cores=4, values={"torch": "2.13.0", "$NCCL_DEBUG": "WARN"})


def job(size, **others):
    """`size` usual ranks, of which some, as r3={...}, have other values."""
    ranks = [replace(USUAL, host=f"gpu{1 + rank // 2:02d}") for rank in range(size)]
    for name, values in others.items():
        rank = int(name[1:])
        ranks[rank] = replace(ranks[rank], values={**USUAL.values, **values})
    return ranks


def test_ranks_that_agree_say_nothing():
    assert compare(job(8)) == ()
    assert preflight(job(1)) == ()


def test_the_minority_is_named_with_what_the_others_have():
    (finding,) = compare(job(8, r3={"torch": "2.12.1"}))
    assert finding.found == "rank 3 on gpu02: torch 2.12.1, the other 7 ranks: 2.13.0"
    assert finding.status == "fail"


def test_several_ranks_and_values_make_one_line_for_each_value():
    odd = {f"r{rank}": {"torch": "2.12.1"} for rank in (3, 4, 5)}
    found = [finding.found for finding in compare(job(16, **odd, r9={"torch": "2.11.0"}))]
    assert found == [
        "ranks 3-5 on gpu02, gpu03: torch 2.12.1, the other 12 ranks: 2.13.0",
        "rank 9 on gpu05: torch 2.11.0, the other 12 ranks: 2.13.0",
    ]


def test_of_two_root_is_the_measure():
    (finding,) = compare(job(2, r1={"torch": "2.12.1"}))
    assert finding.found == "rank 1 on gpu01: torch 2.12.1, rank 0: 2.13.0"


def test_many_hosts_are_counted():
    odd = {f"r{rank}": {"torch": "2.12.1"} for rank in range(10, 20)}
    assert "on gpu06, gpu07, gpu08 and 2 more hosts: torch" in compare(job(24, **odd))[0].found


def test_a_value_that_is_missing_is_none_and_a_long_one_is_cut():
    ranks = job(4, r2={"$NCCL_DEBUG": "x" * 400})
    ranks[3] = replace(ranks[3], values={"torch": "2.13.0"})
    long, missing = compare(ranks)
    assert len(long.found) < 250
    assert missing.found == "rank 3 on gpu02: $NCCL_DEBUG none, the other 2 ranks: WARN"
    assert "export NCCL_DEBUG" in missing.remedy


@pytest.mark.parametrize("name", ["torch", "horovod", "hvdtrain", "mpi", "script"])
def test_what_cannot_be_one_job_ends_it_on_every_rank_alike(name):
    with pytest.raises(LaunchError, match=f"rank 1 on gpu01: {name}") as refused:
        preflight(job(4, r1={name: "other"}))
    assert refused.value.agreed
    assert refused.value.remedy
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    "name", ["python", "numpy", "cpu", "gpu", "nccl", "cores", "limit open files", "$OMP_PROC_BIND"]
)
def test_anything_else_warns_with_a_remedy(name):
    (finding,) = preflight(job(4, r1={name: "other"}))
    assert finding.status == "warn"
    assert finding.remedy


def test_all_that_fails_is_in_one_message():
    with pytest.raises(LaunchError) as refused:
        preflight(job(4, r1={"torch": "2.12.1", "script": "train.py 0f"}))
    assert "torch 2.12.1" in refused.value.found
    assert "script train.py 0f" in refused.value.found


def test_threads_that_do_not_fit_their_host():
    (finding,) = compare([replace(USUAL, threads=4), replace(USUAL, threads=4)])
    assert finding.found == "2 ranks on gpu01 want 8 threads (OMP_NUM_THREADS) on 4 cores"
    assert compare([replace(USUAL, threads=2), replace(USUAL, threads=2)]) == ()


def test_a_rank_bound_to_one_core_is_named():
    (finding,) = compare([replace(USUAL, cores=(0,)), replace(USUAL, cores=(1,))])
    assert "ranks 0-1 on gpu01: bound to one core" in finding.found
    assert compare([replace(USUAL, cores=(0,), host_cores=1)]) == ()


def test_facts_survive_the_way_through_json():
    assert RankFacts.from_json(json.loads(json.dumps(USUAL.to_json()))) == USUAL


def test_ranks_of_a_host_share_its_cores():
    there, bound = replace(USUAL, cores=(0, 1, 2, 3)), replace(USUAL, cores=(4, 5))
    elsewhere = replace(USUAL, host="gpu02")
    everyone = [there, there, elsewhere, bound]
    assert [share_of(rank, everyone) for rank in range(4)] == [2, 2, 4, 2]


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_name_every_number_once(numbers):
    listed = []
    for word in ranges(sorted(numbers)).split(", "):
        first, _, last = word.partition("-")
        listed += range(int(first), int(last or first) + 1)
    assert listed == sorted(numbers)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_named_ranks_and_the_others_are_all(values):
    ranks = [replace(USUAL, values={"python": value}) for value in values]
    findings = compare(ranks)
    assert len(findings) == len(set(values)) - 1
    assert compare(ranks) == findings  # every rank comes to the same
