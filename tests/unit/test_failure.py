"""The first failure: exclusive, whole, and the only one that is said aloud."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hvdtrain.errors import ConfigError, NonFiniteLoss
from hvdtrain.failure import FILE, Failure, Failures, publish, read, set_aside
from hvdtrain.phases import Phases


def failure_of(rank, **fields):
    known = {"host": "a", "step": 3, "phase": "forward", "kind": "exception", "reason": "x", "told_by": rank}
    return Failure(rank=rank, **{**known, **fields})


class Waits:
    """A clock that sleeping moves; `then` is called when a time has come."""

    def __init__(self, then=lambda now: None):
        self.now, self.then = 0.0, then

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.then(self.now)


@pytest.fixture
def rank(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)

    def build(number=1, waits=None):
        waits = waits or Waits()
        phases = Phases(rank=number, host="gpu01")
        phases.enter("backward")
        phases.step = 12
        return Failures(
            rank=number,
            host="gpu01",
            phases=phases,
            log=logging.getLogger("test"),
            directory=tmp_path,
            clock=waits.clock,
            sleep=waits.sleep,
        )

    return build


def test_only_the_first_of_many_is_kept_and_it_is_whole(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        firsts = list(pool.map(lambda rank: publish(tmp_path, failure_of(rank, traceback="x" * 10**5)), range(64)))
    kept = read(tmp_path)
    assert firsts.count(True) == 1
    assert firsts[kept.rank] is True
    assert kept.traceback == "x" * 10**5
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_an_exception_is_recorded_with_where_and_how(rank, tmp_path, caplog):
    with pytest.raises(ValueError, match="no") as raised:
        raise ValueError("no\nsuch thing")
    assert rank(1).caught(raised.value)
    found = json.loads((tmp_path / FILE).read_text())
    assert (found["rank"], found["host"], found["step"], found["phase"]) == (1, "gpu01", 12, "backward")
    assert (found["kind"], found["reason"]) == ("exception", "ValueError: no")
    assert "test_failure.py" in found["traceback"]
    assert found["time"].endswith("+00:00")
    [record] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "rank 1 on gpu01 failed at step 12 in backward and ends the job: ValueError: no" in record.getMessage()


def test_who_comes_second_says_nothing_aloud(rank, tmp_path, caplog):
    publish(tmp_path, failure_of(0))
    assert not rank(1).caught(ValueError("later"))
    assert read(tmp_path).rank == 0
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


class HorovodInternalError(RuntimeError):
    pass


def test_an_echo_gives_the_true_first_one_time(rank, tmp_path, caplog):
    waits = Waits(lambda now: now >= 2.0 and publish(tmp_path, failure_of(0)))
    assert not rank(1, waits).caught(HorovodInternalError("Horovod has been shut down"))
    assert read(tmp_path).rank == 0
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_an_echo_of_nothing_is_recorded_after_all(rank, tmp_path):
    assert rank(1).caught(HorovodInternalError("Horovod has been shut down"))
    assert read(tmp_path).reason == "HorovodInternalError: Horovod has been shut down"


@pytest.mark.parametrize("status", [0, 3, None])
def test_leaving_by_sys_exit_is_a_failure(rank, tmp_path, status):
    assert rank(1).caught(SystemExit(status))
    assert (read(tmp_path).kind, read(tmp_path).reason) == ("exit", f"sys.exit({status}) before the end")


def test_an_agreed_error_is_recorded_by_the_rank_whose_fault_it_is(rank, tmp_path):
    error = NonFiniteLoss("make step 3", found="the loss is nan", agreed=True).at(2, "forward")
    for number in (0, 1):
        rank(number).agreed(error)
        assert read(tmp_path) is None
    rank(2).agreed(error)
    assert (read(tmp_path).rank, read(tmp_path).phase) == (2, "forward")


def test_an_impossible_request_is_no_failure_of_a_run(rank, tmp_path):
    rank(0).agreed(ConfigError("x", found="y", agreed=True))
    assert read(tmp_path) is None


def test_without_a_directory_it_is_said_and_not_recorded(rank, tmp_path, caplog):
    own = rank(1)
    own.directory = None
    assert own.caught(ValueError("early"))
    assert "ValueError: early" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_does_not_hide_the_failure(rank, tmp_path, caplog):
    own = rank(1)
    own.directory = tmp_path / "missing"
    assert own.caught(ValueError("really"))
    assert "ValueError: really" in caplog.text
    assert "no failure.json" in caplog.text


def test_an_exception_in_a_thread_ends_the_job(rank, tmp_path):
    own, aborted = rank(1), []
    own.hook_threads(lambda: aborted.append(True))
    try:
        thread = threading.Thread(target=lambda: 1 // 0, name="loader of mine")
        thread.start()
        thread.join()
    finally:
        own.unhook_threads()
    assert aborted == [True]
    assert read(tmp_path).reason.endswith("(in the thread loader of mine)")


def test_an_earlier_attempt_is_set_aside(tmp_path):
    publish(tmp_path, failure_of(0))
    set_aside(tmp_path)
    assert read(tmp_path) is None
    assert len(list(tmp_path.glob("failure-*Z.json"))) == 1
    set_aside(tmp_path)
