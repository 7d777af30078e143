"""The record of a rank: what another process reads, and where the time goes."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.phases import PHASES, SIZE, Phases, born, decode, read_record, state_of


class Clock:
    """Nanoseconds, moved by the test."""

    now = 10**9

    def __call__(self):
        return self.now

    def pass_s(self, seconds):
        self.now += round(seconds * 1e9)


def make(**world):
    clock = Clock()
    return Phases(rank=3, host="größer", clock=clock, wall=lambda: 1000.0, **world), clock


def test_another_process_reads_what_the_rank_does_from_its_file(tmp_path):
    phases, clock = make()
    phases.keep_in(tmp_path / "record")
    clock.pass_s(2)
    phases.enter("forward")
    phases.step = 17
    clock.pass_s(1)
    phases.beat()
    record = read_record(tmp_path / "record")
    assert (record.rank, record.host, record.pid, record.born) == (3, "größer", os.getpid(), born(os.getpid()))
    assert (record.step, record.phase, record.ended, record.waits) == (17, "forward", False, False)
    assert (record.since, record.moved, record.beat) == (1002.0, 1002.0, 1003.0)
    assert (tmp_path / "record").stat().st_mode & 0o777 == 0o600


def test_a_record_moves_into_a_file_with_what_it_held(tmp_path):
    phases, _ = make()
    phases.enter("save")
    phases.end()
    phases.keep_in(tmp_path / "record")
    record = read_record(tmp_path / "record")
    assert (record.phase, record.ended) == ("save", False)


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 10**6)), max_size=30))
def test_all_time_is_counted_once_in_the_phase_it_was_spent_in(visits):
    phases, clock = make()
    expected = dict.fromkeys(PHASES, 0)
    for phase, microseconds in visits:
        phases.enter(phase)
        clock.now += microseconds * 1000
        expected[phase] += microseconds
    assert phases.take_times() == pytest.approx([expected[phase] * 1e-6 for phase in PHASES])
    assert phases.take_times() == [0.0] * len(PHASES)


def test_time_spent_waiting_is_exchange_and_the_phase_stays():
    phases, clock = make()
    phases.enter("save")
    clock.pass_s(1)
    with phases.waiting():
        clock.pass_s(5)
        assert (phases.look().phase, phases.look().waits) == ("save", True)
    clock.pass_s(2)
    times = dict(zip(PHASES, phases.take_times(), strict=True))
    assert (times["save"], times["exchange"]) == (3.0, 5.0)
    assert (phases.look().waits, phases.look().moved) == (False, 1006.0)


def test_a_phase_within_a_phase_goes_back_but_not_after_an_exception():
    phases, _ = make()
    phases.enter("user")
    with phases.during("evaluate"):
        assert phases.phase == "evaluate"
    assert phases.phase == "user"
    with pytest.raises(ZeroDivisionError), phases.during("save"):
        raise ZeroDivisionError
    assert phases.phase == "save"


def test_declared_work_has_a_name_and_an_end():
    phases, clock = make()
    with phases.section("export of the whole model", timeout_s=60):
        assert (phases.look().section, phases.look().until) == ("export of the whole model", 1060.0)
    clock.pass_s(1)
    assert (phases.look().section, phases.look().until) == ("", 0.0)


def test_what_is_no_record_is_none(tmp_path):
    assert read_record(tmp_path / "missing") is None
    (tmp_path / "short").write_bytes(b"12")
    assert read_record(tmp_path / "short") is None
    with pytest.raises(ValueError, match="version"):
        decode(b"\xff" * SIZE)


def test_a_process_that_is_gone_has_no_state():
    assert state_of(os.getpid()) in ("R", "S")
    assert (state_of(2**22 + 1), born(2**22 + 1)) == ("", 0)
