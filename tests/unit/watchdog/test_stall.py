"""Who waits for whom: judgements over made-up records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.phases import Record
from hvdtrain.watchdog.stall import condition, culprit, said, stalled, table

NOW = 10_000.0


def record(rank=0, **fields):
    known = {"host": "gpu01", "pid": 4711, "born": 1, "ended": False, "step": 7, "phase": "exchange", "waits": False}
    known |= {"since": NOW - 400, "moved": NOW - 400, "beat": NOW - 1, "until": 0.0, "section": "", "busy": False}
    return Record(rank=rank, **{**known, **fields})


def ranks(*records):
    return {each.rank: each for each in records}


def test_a_job_stalls_when_nobody_has_moved_for_long():
    assert stalled(ranks(record(0), record(1)), NOW, 300)
    assert not stalled(ranks(record(0), record(1)), NOW, 500)


def test_one_rank_that_moves_is_enough():
    assert not stalled(ranks(record(0), record(1, moved=NOW - 10)), NOW, 300)


def test_declared_long_work_is_no_stall_until_it_is_over():
    assert not stalled(ranks(record(0, until=NOW + 5), record(1)), NOW, 300)
    assert stalled(ranks(record(0, until=NOW - 5), record(1)), NOW, 300)


def test_a_rank_that_left_in_order_does_not_count():
    assert stalled(ranks(record(0), record(1, ended=True, moved=NOW)), NOW, 300)
    assert not stalled(ranks(record(0, ended=True)), NOW, 300)


@pytest.mark.parametrize(
    ("fields", "state", "expected"),
    [
        ({}, "", "gone"),
        ({}, "Z", "gone"),
        ({}, "T", "stopped"),
        ({"beat": NOW - 60}, "R", "silent"),
        ({"beat": NOW - 60}, None, "silent"),
        ({"phase": "forward"}, "R", "works"),
        ({"phase": "exchange"}, "S", "waits"),
        ({"phase": "exchange", "busy": True}, "R", "works"),
        ({"phase": "save", "waits": True}, None, "waits"),
        ({"phase": "save"}, None, "works"),
    ],
)
def test_what_is_the_matter_with_a_rank(fields, state, expected):
    assert condition(record(**fields), NOW, state=state) == expected


def judge(records, states=None):
    states = states or {}
    conditions = {rank: condition(each, NOW, state=states.get(rank, "S")) for rank, each in records.items()}
    return culprit(records, conditions), conditions


def test_a_stopped_rank_is_the_one_that_is_waited_for():
    found, conditions = judge(ranks(record(0), record(1), record(2, phase="forward")), {1: "T"})
    assert (found, conditions[1]) == (1, "stopped")


def test_a_working_rank_is_the_one_that_is_waited_for():
    assert judge(ranks(record(0), record(1, phase="data"), record(2)))[0] == 1


def test_of_two_that_work_it_is_the_one_that_is_behind_or_has_worked_longer():
    longer = record(1, phase="data", since=NOW - 900)
    assert judge(ranks(record(0), record(2, phase="forward"), longer))[0] == 1
    assert judge(ranks(record(0, phase="data"), record(1, phase="data", step=6), record(2)))[0] == 1


def test_where_all_wait_it_is_the_one_that_is_behind():
    assert judge(ranks(record(0), record(1, step=6), record(2)))[0] == 1


@given(st.lists(st.sampled_from(["data", "forward", "exchange", "save"]), min_size=1, max_size=6), st.data())
def test_whoever_is_named_is_never_better_off_than_another(phases, data):
    records = ranks(*(record(rank, phase=phase) for rank, phase in enumerate(phases)))
    states = {rank: data.draw(st.sampled_from(["R", "T", ""])) for rank in records}
    found, conditions = judge(records, states)
    worst = ("gone", "stopped", "silent", "works", "waits")
    assert worst.index(conditions[found]) == min(worst.index(each) for each in conditions.values())


def test_the_table_says_who_is_where_since_when():
    records = ranks(record(0), record(1, phase="forward", since=NOW - 401.5, host="longer-name"))
    text = table(records, judge(records)[1], NOW)
    assert text.splitlines()[1].split() == (
        ["rank", "1", "longer-name", "step", "7", "forward", "for", "401.5", "s", *said("works").split()]
    )
