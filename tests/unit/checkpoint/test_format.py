"""A checkpoint is read whole and right, or refused in one message with nothing done: flipped, truncated or hostile."""

import hashlib
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

from hvdtrain.checkpoint import parts
from hvdtrain.checkpoint.format import Snapshot, check, peek, read, write
from hvdtrain.checkpoint.manifest import decode, encode, to_json
from hvdtrain.checkpoint.tensorfile import header
from hvdtrain.errors import CheckpointError, InvalidCheckpoint
from hvdtrain.statetree import flatten, tree_digest

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]


@pytest.fixture
def directory(tmp_path, snapshot_at):
    write(tmp_path / "step-00000003", snapshot_at(3))
    return tmp_path / "step-00000003"


def refused(directory, match=None):
    """Assert that `read` and `check` refuse a directory in the same words, and change nothing in it or around it."""
    before = {path.name: os.lstat(path) for path in directory.parent.rglob("*")}
    with pytest.raises(InvalidCheckpoint, match=match) as reading:
        read(directory)
    with pytest.raises(InvalidCheckpoint) as checking:
        check(directory)
    after = {path.name: os.lstat(path) for path in directory.parent.rglob("*")}
    unchanged = [(stat.st_mtime_ns, stat.st_size, stat.st_mode, stat.st_ino) for stat in before.values()]
    assert [(stat.st_mtime_ns, stat.st_size, stat.st_mode, stat.st_ino) for stat in after.values()] == unchanged
    assert str(directory) in str(reading.value)
    assert str(checking.value) == str(reading.value)


def test_what_is_written_is_read(directory, state_at):
    checkpoint = read(directory)
    assert checkpoint.entries.keys() == state_at(3).keys()
    assert tree_digest(checkpoint.entries) == tree_digest(state_at(3))
    assert (checkpoint.manifest.step, checkpoint.manifest.run_id, checkpoint.manifest.size) == (3, "run", 1)
    assert check(directory) == peek(directory) == checkpoint.manifest


def test_the_directory_is_private_and_holds_what_the_manifest_says(directory):
    assert directory.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(directory)) == FILES
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert sorted(peek(directory).files) == FILES[1:]


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A checkpoint of one entry, large as sizes go here: two files, of three tensors and of one."""
    monkeypatch.setattr(parts, "PART_BYTES", 40)
    tensors = {name: torch.arange(4.0) + len(name) for name in ("a", "bb", "ccc")} | {"half": torch.ones(20).half()}
    write(tmp_path / "large", Snapshot(step=3, run_id="run", size=1, entries={"state": flatten(tensors)}))
    return tmp_path / "large", tensors


def test_a_large_entry_is_in_several_files(large):
    directory, tensors = large
    files = ["state-00001-of-00002.safetensors", "state-00002-of-00002.safetensors"]
    assert sorted(os.listdir(directory)) == ["manifest.json", *files, "state.json"]
    assert [sorted(load_file(directory / file)) for file in files] == [["a", "bb", "ccc"], ["half"]]
    assert tree_digest(read(directory).entries["state"]) == tree_digest(tensors)


def test_what_large_means_can_change(large, monkeypatch):
    directory, tensors = large
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 20)
    assert tree_digest(read(directory).entries["state"]) == tree_digest(tensors)


def test_parts_that_are_not_those_that_were_written_are_refused(large):
    directory, _ = large
    first, second = sorted(directory.glob("*.safetensors"))
    files = reseal(directory)["files"]
    first.rename(directory / "state.safetensors")
    refused(directory, "No such file")
    reseal(directory, files={"state.json": files["state.json"], "state.safetensors": files[first.name]})
    refused(directory, "state.safetensors: .* cannot hold the tensors")
    (directory / "state.safetensors").rename(directory / "swap")
    second.rename(first)
    (directory / "swap").rename(second)
    reseal(directory, files={**files, first.name: files[second.name], second.name: files[first.name]})
    refused(directory, "state-00001-of-00002.safetensors: ")
    first.rename(directory / "state-00000-of-00002.safetensors")
    reseal(directory)
    refused(directory, "disagree on the files")


def test_a_manifest_holds_configuration_metrics_and_versions(tmp_path, snapshot_at):
    fields = {"config": {"lr": 0.1, "clip": None}, "metrics": {"loss": 0.25, "bad": float("nan")}}
    manifest = write(tmp_path / "c", snapshot_at(1, **fields))
    assert read(tmp_path / "c").manifest == manifest
    assert (manifest.config, manifest.metrics) == ({"lr": 0.1, "clip": None}, {"loss": 0.25, "bad": None})
    assert "torch" in manifest.versions


@pytest.mark.parametrize("name", ["../model", "Model", "a.b", "", "a/b", "a\n"])
def test_an_entry_that_cannot_be_a_file_name_is_not_written(tmp_path, name):
    with pytest.raises(CheckpointError, match="entries named"):
        write(tmp_path / "c", Snapshot(step=1, run_id="r", size=1, entries={name: flatten({})}))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_found(directory, name):
    path = directory / name
    sound = path.read_bytes()
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(InvalidCheckpoint):
            read(directory)
    path.write_bytes(sound)
    read(directory)


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_and_any_addition_is_found(directory, name):
    path = directory / name
    sound = path.read_bytes()
    for damaged in [sound[:length] for length in range(len(sound))] + [sound + b"\0", sound + sound]:
        path.write_bytes(damaged)
        for judge in (read, peek):
            with pytest.raises(InvalidCheckpoint):
                judge(directory)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(directory, name):
    (directory / name).unlink()
    refused(directory, name)


def test_a_file_that_nobody_listed_is_let_be(directory):
    (directory / ".nfs0001").write_bytes(b"x")
    read(directory)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory", "device"])
def test_only_plain_files_count(directory, name, kind):
    path = directory / name
    aside = path.rename(directory.parent / name)
    if kind == "link":
        path.symlink_to(aside)
    elif kind == "dangling":
        path.symlink_to(directory / "absent")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    refused(directory, name)


def test_the_directory_itself_must_be_one(directory, tmp_path):
    (tmp_path / "link").symlink_to(directory)
    (tmp_path / "file").write_bytes(b"")
    for name in ("link", "file", "absent"):
        with pytest.raises(InvalidCheckpoint, match=r"NotADirectory|FileNotFound"):
            read(tmp_path / name)


# ---- an attacker can compute digests too: what follows is sealed rightly and wrong inside


def reseal(directory, **fields):
    """Make the manifest agree with the files in the directory, and change fields of it, digests and all."""
    manifest = to_json(decode((directory / "manifest.json").read_bytes()))
    names = [name for name in os.listdir(directory) if name != "manifest.json"]
    contents = {name: (directory / name).read_bytes() for name in names}
    files = {name: {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()}
    manifest |= {"schema": 1, "files": files, **fields}

    def dump():
        return (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()

    manifest["sha256"] = hashlib.sha256(dump()).hexdigest()
    (directory / "manifest.json").write_bytes(dump())
    return manifest


def leaf(*body):
    return {"model": {"dict": {"weight": {"tensor": list(body)}}}}


HOSTILE_STATES = {
    "no table": [],
    "a path as entry": {"../model": {"dict": {}}},
    "an entry that is no word": {"Model": 1},
    "no known tag": {"model": {"call": "os.system"}},
    "two tags": {"model": {"dict": {}, "tuple": []}},
    "a tensor without a file": {"extra": {"tensor": ["w", "float32", [1]]}},
    "an unknown dtype": leaf("weight", "object", [1]),
    "a dtype of a name that torch has": leaf("weight", "Tensor", [1]),
    "another dtype": leaf("weight", "int32", [2]),
    "another shape": leaf("weight", "float32", [1, 2]),
    "a negative length": leaf("weight", "float32", [-1]),
    "a length that is true": leaf("weight", "float32", [True]),
    "a length of many digits": leaf("weight", "float32", [10**30]),
    "more than all memory": leaf("weight", "float32", [1 << 61]),
    "an overflow": leaf("weight", "float32", [1 << 61, 1 << 61]),
    "an overflow hidden by a zero": leaf("weight", "float32", [0, 1 << 61, 1 << 61]),
    "a name that is no text": leaf(1, "float32", [2]),
}


@pytest.mark.parametrize("state", HOSTILE_STATES.values(), ids=HOSTILE_STATES)
def test_a_hostile_state_is_refused(directory, state):
    (directory / "state.json").write_text(json.dumps(state))
    (directory / "optimizer.safetensors").unlink()
    reseal(directory)
    refused(directory, "state.json|skeleton|model.safetensors")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 200_000, b"1" * 5000, b'{"model": NaN}', b'{"model": 1e999}'],
    ids=lambda text: f"{text[:5]!r} x {len(text)}",
)
def test_json_that_is_none_or_absurd_is_refused(directory, text):
    (directory / "state.json").write_bytes(text)
    reseal(directory)
    refused(directory)
    (directory / "manifest.json").write_bytes(text)
    refused(directory)


def test_nesting_beyond_reason_is_refused(directory):
    nested = "[" * 300 + "]" * 300
    (directory / "state.json").write_text('{"model": ' + nested + "}")
    for name in ("model.safetensors", "optimizer.safetensors"):
        (directory / name).unlink()
    reseal(directory)
    refused(directory, "nested deeper")


def absurd_headers(sound):
    """Headers in place of the sound one, each in front of the same data."""
    length = int.from_bytes(sound[:8], "little")
    text, data = sound[8 : 8 + length], sound[8 + length :]
    table = json.loads(text)

    def packed(table):
        text = json.dumps(table, separators=(",", ":")).encode()
        return len(text).to_bytes(8, "little") + text + data

    def changed(**fields):
        return packed({**table, "weight": {**table["weight"], **fields}})

    yield "longer than any file", (1 << 63).to_bytes(8, "little") + sound[8:]
    yield "100 MB long", (100 << 20).to_bytes(8, "little") + sound[8:]
    yield "empty", (0).to_bytes(8, "little") + sound[8:]
    yield "no file at all", b""
    yield "a shorter file", sound[:7]
    yield "another dtype", changed(dtype="I32")
    yield "another shape", changed(shape=[1, 2])
    yield "offsets beyond the end", changed(data_offsets=[0, 1 << 40])
    yield "offsets that overlap", changed(data_offsets=[0, 1])
    yield "another name", packed({"../weight": table["weight"], "tied": table["tied"]})
    yield "one tensor more", packed({**table, "more": {"dtype": "U8", "shape": [0], "data_offsets": [9, 9]}})
    yield "deep", (200_000).to_bytes(8, "little") + b"[" * 200_000 + data


def test_absurd_headers_are_refused(directory):
    path = directory / "model.safetensors"
    sound = path.read_bytes()
    count = 0
    for _, damaged in absurd_headers(sound):
        path.write_bytes(damaged)
        reseal(directory)
        refused(directory, "model.safetensors")
        count += 1
    assert count == 12


def test_a_forged_header_of_the_right_length_is_refused(directory):
    path = directory / "model.safetensors"
    sound = path.read_bytes()
    assert sound.startswith(header([("weight", "float32", [2]), ("tied", "bool", [])]))
    path.write_bytes(sound.replace(b'"F32"', b'"I32"'))
    reseal(directory)
    refused(directory, "its header does not list")


@pytest.mark.parametrize("length", [0, 1 << 40, (1 << 62) - 1])
def test_lengths_that_promise_something_else_are_refused(directory, length):
    files = reseal(directory)["files"]
    reseal(directory, files={**files, "model.safetensors": {"length": length, "sha256": "0" * 64}})
    refused(directory, "model.safetensors")


@pytest.mark.parametrize("per_rank", [["absent"], ["sampler"], ["model"]])
def test_per_rank_entries_must_hold_one_value_for_each_rank(directory, per_rank):
    reseal(directory, per_rank=per_rank)
    refused(directory, "does not hold 1 values")


def test_a_sound_copy_with_a_right_seal_is_still_read(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "copy")
    reseal(tmp_path / "copy")
    assert read(tmp_path / "copy").manifest == read(directory).manifest
    assert encode(read(directory).manifest) == (directory / "manifest.json").read_bytes()


def test_trouble_of_the_file_system_is_its_own_error_when_writing(tmp_path, snapshot_at):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "absent" / "step", snapshot_at(1))
    assert os.listdir(tmp_path) == []
