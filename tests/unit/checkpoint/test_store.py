"""Publishing is all or nothing, the newest valid checkpoint is found by looking, and retention keeps what it says."""

import errno
import logging
import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.checkpoint import format as formats
from hvdtrain.checkpoint import parts, tensorfile
from hvdtrain.checkpoint.format import read
from hvdtrain.checkpoint.manifest import Manifest
from hvdtrain.checkpoint.store import Best, Store, kept
from hvdtrain.errors import CheckpointError, InvalidCheckpoint
from hvdtrain.statetree import flatten, tree_digest


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run" / "checkpoints", keep=2)


def damage(store, step, name="model.safetensors"):
    path = store.path(step) / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def names(store):
    return sorted(os.listdir(store.directory))


def test_what_is_published_is_found(store, snapshot_at, state_at):
    assert store.newest_valid() is None
    assert store.publish(snapshot_at(40)) == store.path(40)
    assert store.path(40).name == "step-00000040"
    assert tree_digest(store.newest_valid().entries) == tree_digest(state_at(40))
    assert names(store) == ["step-00000040"]


def test_steps_of_more_than_eight_digits_are_in_order(store, snapshot_at):
    for step in (5, 99_999_999, 1_234_567_890):
        store.publish(snapshot_at(step))
    assert store.steps() == [99_999_999, 1_234_567_890]


def test_other_names_are_no_checkpoints(store, snapshot_at):
    store.publish(snapshot_at(1))
    for name in ("step-2", "step-0000000003", "step-00000004.tmp", "last", ".staging-step-00000009-ab"):
        (store.directory / name).mkdir()
    assert store.steps() == [1]


def test_the_newest_valid_one_wins_and_bad_ones_are_named(store, snapshot_at, caplog):
    for step in (1, 2):
        store.publish(snapshot_at(step))
    os.rename(store.path(2), store.path(7))
    damage(store, 7)
    (store.directory / "step-00000009").symlink_to("/")
    (store.directory / "step-00000008").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert store.newest_valid().manifest.step == 1
    assert [record.args[0].name for record in caplog.records] == [f"step-0000000{n}" for n in (9, 8, 7)]
    assert "model.safetensors: its SHA-256 differs" in caplog.text


def test_a_checkpoint_under_the_name_of_another_step_is_refused(store, snapshot_at):
    store.publish(snapshot_at(1))
    os.rename(store.path(1), store.path(2))
    with pytest.raises(InvalidCheckpoint, match="it is that of step 1"):
        store.read(2)


def test_none_valid_is_an_error_that_says_why(store, snapshot_at):
    store.publish(snapshot_at(1))
    damage(store, 1)
    with pytest.raises(CheckpointError, match=r"none of them is valid: step 1: model\.safetensors"):
        store.newest_valid()
    with pytest.raises(InvalidCheckpoint):
        store.read(1)


@pytest.mark.parametrize("fields", [{"keep": 0}, {"keep": -1}, {"keep_every": 0}])
def test_keeping_none_is_refused(tmp_path, fields):
    with pytest.raises(CheckpointError, match="at least 1"):
        Store(tmp_path, **fields)


# ---- saves that fail or are killed


def test_a_save_that_fails_changes_nothing(store, snapshot_at, monkeypatch):
    store.publish(snapshot_at(1))
    calls = []

    def full_disk(fd):
        calls.append(fd)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        store.publish(snapshot_at(2))
    assert calls
    assert names(store) == ["step-00000001"]
    assert store.newest_valid().manifest.step == 1


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_what_does_not_read_back_is_not_published(store, snapshot_at, monkeypatch, name):
    store.publish(snapshot_at(1))
    real = tensorfile._write

    def corrupting(path, rows):
        real(path, rows)
        if path.name == name:
            with path.open("r+b") as file:
                file.write(b"?")

    monkeypatch.setattr(tensorfile, "_write", corrupting)
    with pytest.raises(OSError, match=rf"other bytes than were written: .*\.staging-step-00000002.*{name}"):
        store.publish(snapshot_at(2))
    assert names(store) == ["step-00000001"]


def test_a_disk_that_is_full_in_the_middle_of_several_files_leaves_nothing_of_them(store, snapshot_at, monkeypatch):
    store.publish(snapshot_at(1))
    monkeypatch.setattr(parts, "PART_BYTES", 64)
    large = {"model": flatten({f"w{number}": torch.ones(64) for number in range(8)})}
    real, written = tensorfile._write, []

    def filling(path, rows):
        if path.name == "model-00005-of-00008.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written.append(path.name)
        real(path, rows)

    monkeypatch.setattr(tensorfile, "_write", filling)
    monkeypatch.setattr(parts, "MOST_PARTS", 8)
    with pytest.raises(OSError, match="No space left on device"):
        store.publish(snapshot_at(2, entries=large))
    assert "model-00001-of-00008.safetensors" in written
    assert names(store) == ["step-00000001"]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("hvdtrain-checkpoint")]


def test_a_snapshot_that_could_not_be_read_is_not_published(store, snapshot_at, monkeypatch):
    store.publish(snapshot_at(1))
    monkeypatch.setattr(formats, "STATE_LIMIT_BYTES", 10)
    with pytest.raises(InvalidCheckpoint, match=r"(?s)\.staging-step-00000002.*state.json: longer than 10 bytes"):
        store.publish(snapshot_at(2))
    assert names(store) == ["step-00000001"]


def test_leftovers_of_killed_saves_are_cleared(store, snapshot_at):
    for step in (1, 2):
        store.publish(snapshot_at(step))
    for name in (".staging-step-00000003-00", ".deleted-step-00000000-00", ".replaced-step-00000002"):
        (store.directory / name).mkdir()
        (store.directory / name / "model.safetensors").write_bytes(b"half")
    (store.directory / ".staging-link").symlink_to(store.path(1))
    store.recover()
    assert names(store) == ["step-00000001", "step-00000002"]
    assert store.newest_valid().manifest.step == 2
    Store(store.directory / "absent").recover()


def test_a_kill_between_making_room_and_renaming_is_undone(store, snapshot_at):
    store.publish(snapshot_at(1))
    store.path(1).rename(store.directory / ".replaced-step-00000001")
    assert store.steps() == []
    store.recover()
    assert store.newest_valid().manifest.step == 1
    assert names(store) == ["step-00000001"]


def test_the_same_step_again_replaces_what_was_there(store, snapshot_at):
    store.publish(snapshot_at(1, run_id="old"))
    damage(store, 1)
    store.publish(snapshot_at(1, run_id="new"))
    assert store.newest_valid().manifest.run_id == "new"
    assert names(store) == ["step-00000001"]


def test_steps_beyond_one_that_was_resumed_are_set_aside_whole(store, snapshot_at, caplog):
    for step in (10, 20):
        store.publish(snapshot_at(step))
    with caplog.at_level(logging.WARNING):
        store.publish(snapshot_at(15))
    assert store.steps() == [10, 15]
    assert store.newest_valid().manifest.step == 15
    [aside] = store.directory.glob("superseded-step-00000020-*")
    assert read(aside).manifest.step == 20
    assert "set aside" in caplog.text


# ---- retention


def manifests_of(table):
    return {step: Manifest(step=step, run_id="r", size=1, metrics={"loss": value}) for step, value in table.items()}


tables = st.dictionaries(st.integers(0, 60), st.one_of(st.none(), st.integers(0, 5).map(float)), max_size=12)
rules = st.fixed_dictionaries(
    {
        "keep": st.none() | st.integers(1, 5),
        "keep_every": st.none() | st.integers(1, 20),
        "best": st.none() | st.builds(Best, st.sampled_from(["loss", "absent"]), st.sampled_from(["min", "max"])),
    }
)


@given(tables, rules)
def test_the_laws_of_retention(table, rule):
    chosen, steps = kept(manifests_of(table), **rule), sorted(table)
    assert chosen <= set(steps)
    assert not steps or steps[-1] in chosen
    assert set(steps if rule["keep"] is None else steps[-rule["keep"] :]) <= chosen
    if rule["keep_every"]:
        assert {step for step in steps if step % rule["keep_every"] == 0} <= chosen
    values = [value for value in table.values() if value is not None]
    if rule["best"] and rule["best"].metric == "loss" and values:
        best = max(values) if rule["best"].mode == "max" else min(values)
        assert max(step for step, value in table.items() if value == best) in chosen


@given(tables, rules, st.integers(61, 99))
def test_what_retention_let_go_once_it_never_wants_again(table, rule, step):
    manifests = manifests_of(table)
    chosen = kept(manifests, **rule)
    later = manifests_of({**{old: table[old] for old in chosen}, step: 3.0})
    assert kept({**manifests, step: later[step]}, **rule) == kept(later, **rule)


def test_retention_on_disk(tmp_path, snapshot_at):
    store = Store(tmp_path / "c", keep=2, keep_every=4, best=Best("acc", "max"))
    for step, acc in enumerate([0.1, 0.9, 0.2, 0.3, float("nan"), 0.4, 0.5, 0.6], 1):
        store.publish(snapshot_at(step, metrics={"acc": acc}))
    assert store.steps() == [2, 4, 7, 8]
    assert names(store) == [f"step-0000000{step}" for step in (2, 4, 7, 8)]


def test_a_damaged_checkpoint_is_neither_counted_nor_deleted(store, snapshot_at, caplog):
    for step in (1, 2):
        store.publish(snapshot_at(step))
    (store.path(2) / "model.safetensors").unlink()
    store.publish(snapshot_at(3))
    assert store.steps() == [1, 2, 3]
    store.publish(snapshot_at(4))
    assert store.steps() == [2, 3, 4]
    assert "not counting the checkpoint" in caplog.text


def test_trouble_with_old_ones_does_not_fail_the_new_one(store, snapshot_at, caplog, monkeypatch):
    for step in (1, 2):
        store.publish(snapshot_at(step))
    monkeypatch.setattr(Store, "_delete", lambda self, path: (_ for _ in ()).throw(PermissionError(13, "no", path)))
    store.publish(snapshot_at(3))
    assert store.steps() == [1, 2, 3]
    assert "could not be deleted" in caplog.text
