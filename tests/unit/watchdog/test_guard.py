"""The thread at work, in a run directory of two ranks: this process, and one that sleeps."""

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from hvdtrain.failure import Failure, Failures, publish, read
from hvdtrain.phases import Phases
from hvdtrain.watchdog.guard import Watchdog
from hvdtrain.watchdog.reports import record_file
from hvdtrain.watchdog.stacks import Stacks, read_stacks

PEER = """
import sys
from pathlib import Path
from hvdtrain.phases import Phases
phases = Phases(rank=1, host="here")
phases.keep_in(Path(sys.argv[1]))
phases.step = 5
phases.enter("update")
print("ready", flush=True)
if sys.stdin.readline() == "end\\n":
    phases.end()
"""


@pytest.fixture
def peer(tmp_path):
    (tmp_path / "watch").mkdir()
    argv = [sys.executable, "-c", PEER, record_file(tmp_path / "watch", 1)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


class World:
    """One watchdog, and what it did."""

    def __init__(self, directory, **settings):
        self.directory, self.aborted = directory, threading.Event()
        self.phases = Phases(rank=0, host="here")
        self.phases.keep_in(record_file(directory / "watch", 0))
        failures = Failures(rank=0, host="here", phases=self.phases, log=logging.getLogger("test"), directory=directory)
        known = {"stall_s": None, "start_s": 0.2, "usual_steps": 1.0, "poll_s": 0.02}
        places = {"records": directory / "watch", "stacks": directory, "size": 2}
        self.watchdog = Watchdog(failures, self.phases, abort=self.abort, **places, **known | settings)

    def abort(self):
        self.aborted.set()


@pytest.fixture
def world(tmp_path, peer):
    worlds = []

    def build(**settings):
        worlds.append(World(tmp_path, **settings))
        return worlds[-1]

    yield build
    for each in worlds:
        each.watchdog.close()


def test_the_death_of_a_peer_is_recorded_with_where_it_was(world, peer, tmp_path):
    here = world()
    peer.send_signal(signal.SIGKILL)
    assert here.aborted.wait(20)
    found = read(tmp_path)
    assert (found.rank, found.step, found.phase, found.kind, found.signal) == (1, 5, "update", "killed", "SIGKILL")
    assert (found.told_by, found.reason) == (0, "it was killed by SIGKILL")


def test_a_peer_that_left_in_order_is_not_missed(world, peer, tmp_path):
    here = world()
    peer.communicate("end\n", timeout=20)
    assert not here.aborted.wait(0.3)
    assert read(tmp_path) is None


def test_a_peer_whose_failure_is_known_ends_this_rank_without_another_word(world, peer, tmp_path):
    here = world()
    first = {"rank": 1, "host": "here", "step": 5, "phase": "update", "kind": "exception", "reason": "x", "told_by": 1}
    publish(tmp_path, Failure(**first))
    peer.send_signal(signal.SIGKILL)
    assert here.aborted.wait(20)
    assert read(tmp_path).kind == "exception"


def test_no_progress_is_reported_with_stacks(world, tmp_path):
    here = world(stall_s=0.2)
    here.phases.enter("forward")
    assert here.aborted.wait(20)  # this line is where the main thread is
    found = read(tmp_path)
    assert found.kind == "stall"
    assert found.rank == 1  # the sleeper has no watchdog, and gives no sign of life
    assert "no sign of life" in found.reason
    assert "test_guard.py" in read_stacks(tmp_path / "stacks-rank-0000.txt")


def test_progress_of_one_rank_declared_work_and_rest_raise_no_alarm(world, tmp_path):
    here = world(stall_s=0.2)
    with here.phases.section("export", timeout_s=100):
        assert not here.aborted.wait(0.8)
    here.watchdog.rest()
    assert not here.aborted.wait(0.8)
    assert read(tmp_path) is None


def test_a_rank_that_writes_much_makes_progress(world, tmp_path):
    here = world(stall_s=0.2, poll_s=0.05)
    here.phases.enter("save")
    with (tmp_path / "large").open("wb") as file:
        for _ in range(100):
            file.seek(0)
            file.write(bytes(4 * 2**20))
            if here.aborted.wait(0.01):
                break
    assert read(tmp_path) is None


def test_signals_are_heard_while_the_main_thread_is_in_c(world):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append("handler"))
    try:
        here = world()
        here.watchdog.listen(heard.append)
        sent = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGUSR1])
        sent.start()
        while not heard:  # the main thread lets go of the interpreter, but comes back for no signal
            hashlib.pbkdf2_hmac("sha256", b"long", b"in C", 1_000_000)
        sent.join()
        assert heard[0] == signal.SIGUSR1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_stacks_name_the_main_thread_first(tmp_path):
    ready, leave = threading.Event(), threading.Event()

    def write():
        with Stacks(tmp_path / "stacks") as stacks:
            stacks.write()
        ready.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert ready.wait(20)
    leave.set()
    thread.join()
    text = read_stacks(tmp_path / "stacks")
    assert text.startswith("MainThread (most recent call last):")
    assert "test_stacks_name_the_main_thread_first" in text
    assert read_stacks(tmp_path / "missing") == ""
