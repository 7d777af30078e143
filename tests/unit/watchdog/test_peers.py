"""Deaths of real processes, as another process that is not their parent sees them."""

import os
import selectors
import signal
import subprocess
import sys

import pytest

from hvdtrain.phases import Record, born
from hvdtrain.watchdog.peers import Death, Peers, oom_kills


def record_of(pid, rank=1, host="here"):
    fields = {"step": 0, "phase": "user", "since": 0.0, "waits": False, "beat": 0.0, "moved": 0.0, "until": 0.0}
    return Record(rank=rank, host=host, pid=pid, born=born(pid), ended=False, section="", busy=False, **fields)


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"], stdin=-1)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


@pytest.fixture
def peers(sleeper):
    peers = Peers({1: record_of(sleeper.pid)}, host="here")
    yield peers
    peers.close()


def wait_for_end(peers):
    with selectors.DefaultSelector() as selector:
        for descriptor in peers.descriptors():
            selector.register(descriptor, selectors.EVENT_READ)
        return [peers.descriptors()[key.fd] for key, _ in selector.select(20)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_death_by_signal_is_seen_and_named(sleeper, peers, number):
    sleeper.send_signal(number)
    assert wait_for_end(peers) == [1]
    assert peers.death(1) == Death(signal=number.name)
    assert number.name in str(peers.death(1))


def test_an_exit_is_seen_with_its_status(sleeper, peers):
    sleeper.stdin.close()
    assert wait_for_end(peers) == [1]
    assert peers.death(1) == Death(status=3)


def test_a_stopped_process_is_told_from_one_that_runs_and_can_be_killed(sleeper, peers):
    sleeper.send_signal(signal.SIGSTOP)
    while peers.state(1) != "T":
        os.sched_yield()
    peers.kill(1)
    assert wait_for_end(peers) == [1]
    sleeper.wait()
    assert peers.state(1) == ""
    peers.kill(1)


def test_other_hosts_and_later_processes_of_the_same_number_are_left_out(sleeper):
    elsewhere = record_of(sleeper.pid, host="there")
    reused = Record(**{**record_of(sleeper.pid).__dict__, "born": 1})
    peers = Peers({1: elsewhere, 2: reused}, host="here")
    assert peers.descriptors() == {}
    assert peers.state(1) == ""


def test_a_death_of_unknown_kind_says_what_it_may_have_been():
    assert "out of memory" in str(Death())
    assert "exit status 0" in str(Death(status=0))


def test_the_kernel_is_asked_for_kills_for_want_of_memory():
    assert oom_kills() >= 0
