"""A host that answers is not lost, one that is silent is; the job's processes are found and killed by their token."""

import os
import subprocess
import sys
import time

import pytest

from hvdtrain.launch import warden
from hvdtrain.launch.hostwatch import HostWatch, spawn_over_ssh
from hvdtrain.launch.spec import Host

HERE = Host(name="localhost")
LOCAL = spawn_over_ssh(connect_timeout_s=1)
TOKEN = f"test-{os.getpid()}"


@pytest.fixture
def rank():
    """A process of the job, as a launcher would have started it."""
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, warden.VARIABLE: TOKEN})
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def watch():
    watches = []

    def watch(hosts=(HERE,), spawn=LOCAL, lost_after_s=20.0):
        watches.append(HostWatch(hosts, TOKEN, lost_after_s=lost_after_s, spawn=spawn))
        return watches[-1]

    yield watch
    for one in watches:
        one.close()


def until(condition, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def heard(watch):
    def poll():
        watch.poll()
        return not watch.silent_since(began)

    began = time.monotonic()
    return poll


def test_a_host_that_answers(watch):
    one = watch()
    until(heard(one))
    until(heard(one))  # the next beat too
    assert one.lost() == ()


def test_what_the_job_left_is_killed_on_order(watch, rank):
    one = watch()
    until(heard(one))
    assert one.order("sweep", limit_s=10) == {"localhost": 1}
    assert rank.wait(timeout=5) == -9
    assert one.order("end", limit_s=10) == {"localhost": 0}


def test_a_host_that_falls_silent_is_lost(watch):
    one = watch(spawn=lambda host, arguments: says_once(), lost_after_s=0.3)
    until(heard(one))
    until(lambda: (one.poll(), one.lost())[1] == ("localhost",))


def test_a_host_that_never_answers_is_unwatched_rather_than_lost(watch):
    silent = watch(spawn=lambda host, arguments: piped("sleep", "60"), lost_after_s=0.2)
    until(lambda: (silent.poll(), silent.unwatched())[1] == ("localhost",))
    assert silent.lost() == ()
    assert silent.silent_since(time.monotonic()) == ()
    assert silent.order("sweep", limit_s=5) == {}


def test_following_other_hosts_ends_the_old_connections_and_makes_new_ones(watch):
    asked = []

    def spawn(host, arguments):
        asked.append((host.name, process := says_once()))
        return process

    one = watch(hosts=(Host(name="a"), Host(name="b")), spawn=spawn)
    one.follow((Host(name="b"), Host(name="c")))
    assert [name for name, _ in asked] == ["a", "b", "c"]
    assert [process.poll() for _, process in asked] == [-9, None, None]


def says_once():
    return piped("sh", "-c", "echo beat; sleep 60")


def piped(*argv):
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.set_blocking(process.stdin.fileno(), False)
    os.set_blocking(process.stdout.fileno(), False)
    return process


def test_a_host_left_alone_ends_its_ranks_by_itself(rank):
    """The connection is gone: the launching host died, or the network did."""
    argv = [sys.executable, warden.__file__, warden.MARK, TOKEN, "1"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watch:
        assert watch.stdout.readline() == b"beat\n"
        watch.stdin.close()
        assert rank.wait(timeout=10) == -9
        assert watch.wait(timeout=10) == 0


def test_a_new_connection_replaces_the_old_watch(watch, rank):
    old = subprocess.Popen([sys.executable, warden.__file__, warden.MARK, TOKEN, "60"], stdin=subprocess.PIPE)
    one = watch()
    until(heard(one))
    assert old.wait(timeout=10) == -9
    old.stdin.close()
    assert rank.poll() is None


def test_the_watch_needs_no_package(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", "-S", warden.__file__, warden.MARK, TOKEN, "5"],
        input="end\n",
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["beat", "swept", "0"]
    assert done.returncode == 0
