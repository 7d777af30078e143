"""A staging that is killed at moments spread over its whole course."""

import hashlib
import signal
import subprocess
import sys

import pytest

from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.data.staging import stage

SOLO = Collectives(SoloTransport())


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "shared"
    for name, length in {"a.bin": 100_000, "empty": 0, "deep/er/b.bin": 12_345, "deep/c": 1, "z": 4096}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(hashlib.shake_256(name.encode()).digest(length))
    return root


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def hidden(directory):
    return sorted(path.name for path in directory.iterdir() if "staging-" in path.name)


KILLED = """
import os, signal, sys
from pathlib import Path
from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.data.staging import stage

calls = 0

def tracer(frame, event, argument):
    global calls
    if "hvdtrain/data/" in frame.f_code.co_filename:
        calls += 1
        if calls == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
    return tracer

collectives = Collectives(SoloTransport())
sys.settrace(tracer)
stage(Path(sys.argv[1]), Path(sys.argv[2]), collectives=collectives, chunk_bytes=30_000)
sys.settrace(None)
print(calls)
"""


def kill_at(source, destination, event):
    command = [sys.executable, "-c", KILLED, str(source), str(destination), str(event)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_kill_at_any_moment_leaves_no_damaged_copy(tmp_path, source):
    """At moments spread evenly over the lines that a staging runs through."""
    events = int(kill_at(source, tmp_path / "local", -1).stdout)
    old = contents(source)
    (source / "deep" / "c").write_bytes(b"y")
    new = contents(source)
    for moment in [events * part // 6 for part in range(1, 6)] + [events - back for back in (40, 25, 10)]:
        assert kill_at(source, tmp_path / "local", moment).returncode == -signal.SIGKILL
        if (tmp_path / "local").exists():  # between two renames it may be missing, but never in part
            assert contents(tmp_path / "local") in (old, new)
    stage(source, tmp_path / "local", collectives=SOLO)
    assert contents(tmp_path / "local") == new
    assert hidden(tmp_path) == []
