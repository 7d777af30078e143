"""A process is killed at every system call on files that one save makes; the newest checkpoint is whole all the same.

strace lists the calls of an undisturbed save. Then, for each of them, a save of its own is killed as it enters that
call, so the disk is seen in every state between two calls. Newest afterwards is the old checkpoint or the new one.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hvdtrain.checkpoint.store import Store
from hvdtrain.statetree import tree_digest

CALL = re.compile(r"^(\d+) +(\w+)\(")
KILLED = re.compile(r"^\d+ +(\w+)\(.*(?:= \?|<unfinished \.\.\.>)$", re.MULTILINE)
OF_MEMORY = {"mmap"}  # strace counts it among those on descriptors; of a thread's stack it is none


class Saver:
    """The forking process, and strace around a child of it."""

    def __init__(self, scratch):
        self._trace = scratch / "trace"
        argv = [sys.executable, Path(__file__).with_name("saving_process.py"), scratch / "warm"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _ask(self, line):
        print(line, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def save(self, words, *options):
        """Save in a child under strace; its exit status and the trace."""
        pid = self._ask(" ".join(map(str, words)))
        argv = ["strace", "-f", "-p", str(pid), "-o", self._trace, "-e", "trace=%file,%desc", *options]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as tracer:
            attached = tracer.stderr.readline()
            status = self._ask("go")
            assert "attached" in attached, attached
            tracer.stderr.read()
        return status, self._trace.read_text()

    def close(self):
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture
def scratch():
    """A directory in memory where there is one: a kill leaves what the system calls did, on any file system."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.fixture
def saver(scratch):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    saver = Saver(scratch)
    yield saver
    saver.close()


def calls_in(trace):
    """(name, how many of that name this thread has made) for each call on files, in order."""
    seen, calls = Counter(), []
    for match in filter(None, map(CALL.match, trace.splitlines())):
        seen[match.groups()] += 1
        calls += [(match[2], seen[match.groups()])] if match[2] not in OF_MEMORY else []
    return sorted(set(calls), key=calls.index)


def newest(directory):
    checkpoint = Store(directory).newest_valid()
    return checkpoint and tree_digest([checkpoint.manifest.step, checkpoint.entries])


def new_step(directory):
    """Step 2 after step 1, which retention then deletes."""
    return [directory, 2, 2.0]


def same_step(directory):
    """Step 1 again, with other contents, in place of what is there."""
    return [directory, 1, 2.0]


def after_leftovers(directory):
    """Step 2 after killed saves, whose remains are cleared first."""
    for name in (".staging-step-00000002-00", ".deleted-step-00000000-00"):
        (directory / name).mkdir()
        (directory / name / "model.safetensors").write_bytes(b"half")
    return [directory, 2, 2.0]


@pytest.mark.parametrize(
    ("prepare", "where"),
    [(new_step, "thread"), (same_step, "main"), (after_leftovers, "main")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_save_killed_at_every_call_leaves_the_old_or_the_new_one(saver, scratch, capsys, prepare, where):
    template, directory = scratch / "template", scratch / "checkpoints"
    assert saver.save([template, 1, 1.0, "main"])[0] == 0
    old = newest(template)

    def attempt(*options):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(template, directory)
        return saver.save([*prepare(directory), where], *options)

    status, trace = attempt()
    new, calls = newest(directory), calls_in(trace)
    assert status == 0
    assert new not in (old, None)
    assert {"openat", "write", "fsync", "mkdir", "rename", "unlinkat"} <= {name for name, _ in calls}

    found = Counter()
    for name, number in calls:
        status, trace = attempt("-e", f"inject={name}:signal=KILL:when={number}")
        assert status == -9, f"{name} number {number} was not reached"
        assert name in KILLED.findall(trace), trace
        store = Store(directory)
        store.recover()
        found[{old: "old", new: "new"}[newest(directory)]] += 1
        assert not [path for path in directory.iterdir() if path.name.startswith(".")], (name, number)
    with capsys.disabled():
        print(f"\n{prepare.__name__} in {where}: killed at each of {len(calls)} calls; then newest was {dict(found)}")
    assert min(found["old"], found["new"]) > 0
