"""One save is in flight, its outcome is taken once, and what went wrong is told as what it was."""

import signal
import threading
import time

import pytest

from hvdtrain.checkpoint.writer import Writer
from hvdtrain.errors import CheckpointError


def ticking():
    moments = iter(range(1000))
    return lambda: float(next(moments))


def test_it_returns_at_once_and_the_outcome_comes_once(snapshot_at):
    go, seen = threading.Event(), []
    writer = Writer(lambda snapshot: (go.wait(20), seen.append(snapshot.step)), clock=ticking())
    writer.start(snapshot_at(7))
    assert (writer.poll(), seen) == (None, [])
    go.set()
    outcome = writer.wait()
    assert (outcome.step, outcome.save_s, outcome.fault, seen) == (7, 1.0, "", [7])
    assert (writer.wait(), writer.poll()) == (None, None)


def test_a_poll_takes_an_outcome_that_is_there(snapshot_at):
    done = threading.Event()

    class Announcing(Writer):
        def _run(self, snapshot):
            super()._run(snapshot)
            done.set()

    writer = Announcing(lambda snapshot: None, clock=ticking())
    writer.start(snapshot_at(7))
    assert done.wait(20)
    assert writer.poll().step == 7
    writer.start(snapshot_at(8))
    assert writer.wait().step == 8


@pytest.mark.parametrize(
    ("error", "fault", "tolerable"),
    [
        (OSError(28, "No space left on device"), r"OSError: [Errno 28] No space left on device", True),
        (CheckpointError("save", found="it does not read back"), "it does not read back", True),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug", False),
    ],
)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_faults_are_told_apart(snapshot_at, error, fault, tolerable, asynchronous):
    def publish(snapshot):
        raise error

    writer = Writer(publish, clock=ticking(), asynchronous=asynchronous)
    writer.start(snapshot_at(1))
    outcome = writer.wait()
    assert fault in outcome.fault
    assert outcome.tolerable is tolerable
    assert not writer.failed


def test_failed_is_set_until_the_outcome_is_taken(snapshot_at):
    def publish(snapshot):
        raise OSError("broken")

    writer = Writer(publish, clock=ticking(), asynchronous=False)
    assert not writer.failed
    writer.start(snapshot_at(1))
    assert writer.failed
    writer.poll()
    assert not writer.failed


def test_a_second_save_in_flight_is_a_bug(snapshot_at):
    go = threading.Event()
    writer = Writer(lambda snapshot: go.wait(20), clock=ticking())
    writer.start(snapshot_at(1))
    with pytest.raises(AssertionError, match="one save in flight"):
        writer.start(snapshot_at(2))
    go.set()
    writer.wait()


def test_a_wait_that_a_signal_interrupts_can_be_made_again(snapshot_at):
    released, done = threading.Event(), []

    def publish(snapshot):
        released.wait(10)
        done.append(snapshot.step)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    writer = Writer(publish, clock=time.monotonic)
    writer.start(snapshot_at(3))
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    threading.Timer(0.05, released.set).start()
    assert writer.wait().step == 3
    assert done == [3]
