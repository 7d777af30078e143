"""Stop requests: real signals to this process, a clock that the test moves, and SLURM's own variable."""

import os
import signal
import time

import pytest

from hvdtrain.config import StopConfig
from hvdtrain.errors import ConfigError
from hvdtrain.stopping import StopRequests


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def requests(config=None, **world):
    return StopRequests(config or StopConfig(), **{"env": {}, "clock": Clock(), **world})


def test_nothing_is_asked_until_a_signal_comes():
    with requests() as stop:
        assert not stop.asked()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.asked()
        assert stop.reason == "SIGUSR1"


def test_a_second_signal_within_the_grace_time_leaves_at_once():
    left, clock = [], Clock()
    with requests(StopConfig(grace_s=10), clock=clock, leave=left.append):
        os.kill(os.getpid(), signal.SIGTERM)
        assert left == []
        clock.now += 9
        os.kill(os.getpid(), signal.SIGTERM)
        assert left == [1]


def test_a_late_second_signal_is_one_more_request():
    left, clock = [], Clock()
    with requests(StopConfig(grace_s=10), clock=clock, leave=left.append) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        clock.now += 11
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (left, stop.reason) == ([], "SIGUSR2")


def test_earlier_handlers_are_called_and_put_back():
    calls = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: calls.append(number))
    try:
        mine = signal.getsignal(signal.SIGUSR2)
        with requests():
            os.kill(os.getpid(), signal.SIGUSR2)
        assert calls == [signal.SIGUSR2]
        assert signal.getsignal(signal.SIGUSR2) is mine
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_time_limit_counts_from_the_start_and_leaves_room_for_a_save():
    clock, save = Clock(), [0.0]
    stop = requests(StopConfig(time_limit_s=100, margin_s=10), clock=clock, save_s=lambda: save[0])
    clock.now += 80
    assert not stop.asked()
    save[0] = 5.0
    assert stop.asked()
    assert stop.reason == "time limit"


def test_the_limit_of_a_slurm_job_is_read():
    clock = Clock()
    stop = requests(StopConfig(margin_s=20), env={"SLURM_JOB_END_TIME": "1060"}, clock=clock)
    clock.now = 1039
    assert not stop.asked()
    clock.now = 1040
    assert stop.asked()


def test_an_older_slurm_is_asked_for_its_limit(tmp_path):
    tool = tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\necho JobId=$3 StartTime=2001-01-01T00:00:00 EndTime=2001-09-09T03:46:40 Deadline=N/A\n")
    tool.chmod(0o755)
    clock = Clock()
    env = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:/bin:/usr/bin", "TZ": "UTC"}
    stop = requests(StopConfig(margin_s=0), env=env, clock=clock)
    end = time.mktime(time.strptime("2001-09-09T03:46:40", "%Y-%m-%dT%H:%M:%S"))
    clock.now = end - 1
    assert not stop.asked()
    clock.now = end
    assert stop.asked()


def test_without_scontrol_there_is_no_limit_and_a_warning(caplog):
    assert not requests(env={"SLURM_JOB_ID": "7", "PATH": "/nowhere"}).asked()
    assert "is not known" in caplog.text


def test_an_unknown_signal_is_refused():
    with pytest.raises(ConfigError, match="SIGNAL"):
        requests(StopConfig(signals=("SIGNAL",)))


def test_a_signal_that_is_heard_and_handled_counts_once():
    left, clock = [], Clock()
    with requests(StopConfig(grace_s=10), clock=clock, leave=left.append) as stop:
        stop.heard(signal.SIGTERM)  # by the watchdog, while the main thread is in Horovod
        assert stop.reason == "SIGTERM"
        os.kill(os.getpid(), signal.SIGTERM)  # the handler of the same signal, later
        assert left == []
        stop.heard(signal.SIGTERM)
        assert left == [1]


def test_a_signal_that_asks_for_nothing_is_not_heard():
    with requests() as stop:
        stop.heard(signal.SIGWINCH)
        assert stop.reason is None
