import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.install import cache
from hvdtrain.install.target import target_of

NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


@pytest.fixture
def target(laptop):
    return target_of(laptop, gpu="none", env={})


def put(root, target, content="a wheel"):
    with cache.stage(root) as work:
        (work / "wheels").mkdir()
        (work / "wheels" / NAME).write_text(content)
        return cache.publish(root, target, work / "wheels")


def test_the_cache_is_where_the_standard_says():
    assert cache.default_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/hvdtrain/wheels")
    assert cache.default_root({"HOME": "/home/me"}) == Path("/home/me/.cache/hvdtrain/wheels")


def test_what_was_published_is_found_and_nothing_else_is_left(tmp_path, target):
    assert cache.lookup(tmp_path, target) is None
    entry = put(tmp_path, target)
    assert entry == cache.lookup(tmp_path, target)
    assert entry.wheel.read_text() == "a wheel"
    assert cache.targets_in(tmp_path) == [target]
    assert cache.lookup(tmp_path, replace(target, torch="2.14.1")) is None
    assert os.listdir(tmp_path) == [target.key]


def test_the_first_of_two_publishers_stays(tmp_path, target):
    put(tmp_path, target, "the first")
    assert put(tmp_path, target, "the second").wheel.read_text() == "the first"


@pytest.mark.parametrize(
    "damage", ["changed", "missing wheel", "missing manifest", "broken manifest", "foreign manifest"]
)
def test_a_damaged_entry_is_not_used_and_is_replaced(tmp_path, target, damage):
    entry = put(tmp_path, target)
    manifest = entry.folder / cache.MANIFEST
    if damage == "changed":
        entry.wheel.write_text("another")
    elif damage == "missing wheel":
        entry.wheel.unlink()
    elif damage == "missing manifest":
        manifest.unlink()
    else:
        manifest.write_text("{" if damage == "broken manifest" else "[]")
    assert cache.lookup(tmp_path, target) is None
    assert put(tmp_path, target, "anew").wheel.read_text() == "anew"
    assert os.listdir(tmp_path) == [target.key]


def test_a_manifest_cannot_point_outside_its_folder(tmp_path, target):
    entry = put(tmp_path, target)
    outside = tmp_path / "outside.whl"
    outside.write_text("x")
    values = json.loads((entry.folder / cache.MANIFEST).read_text())
    values["sha256"] = {"horovod-../../outside.whl": cache.sha256_of(outside)}
    (entry.folder / cache.MANIFEST).write_text(json.dumps(values))
    assert cache.lookup(tmp_path, target) is None


def test_a_stage_disappears_when_the_build_fails(tmp_path):
    def build():
        with cache.stage(tmp_path) as work:
            (work / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert os.listdir(tmp_path) == []


BUILDER = textwrap.dedent("""
    import sys, pathlib, json
    from hvdtrain.install import cache
    from hvdtrain.install.target import Target
    root, mine, use_lock = pathlib.Path(sys.argv[1]), sys.argv[3], sys.argv[4] == "lock"
    target = Target.from_json(json.loads(sys.argv[2]))
    def build():
        with cache.stage(root) as work:
            (work / "wheels").mkdir()
            (work / "wheels" / "horovod-1.whl").write_text(mine * 500_000)
            entry = cache.publish(root, target, work / "wheels")
            print("built", entry.wheel.read_text()[:1])
            return entry
    print("ready", flush=True)
    sys.stdin.readline()
    if use_lock:
        with cache.locked(root, target):
            entry = cache.lookup(root, target) or build()
    else:
        entry = build()
    text = entry.wheel.read_text()
    assert len(set(text)) == 1 and len(text) == 500_000, "a mixture"
    print("got", text[0])
""")


@pytest.mark.parametrize("mode", ["lock", "no-lock"])
def test_set_ups_at_once_share_one_entry(tmp_path, target, mode):
    def start(letter):
        argv = [sys.executable, "-c", BUILDER, str(tmp_path), json.dumps(target.to_json()), letter, mode]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    processes = [start(letter) for letter in "abcd"]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all are at the line before the build; now let them go
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    if mode == "lock":
        assert sum("built" in output for output in outputs) == 1
    assert cache.lookup(tmp_path, target)
    assert not list(tmp_path.glob(".stage-*"))
