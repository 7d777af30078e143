"""A manifest has one spelling, is sealed, and every field of it is judged."""

import hashlib
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.checkpoint.manifest import Manifest, decode, encode, from_json, library_versions, to_json
from hvdtrain.checkpoint.tensorfile import FileEntry

FILES = {"state.json": FileEntry(2, "0" * 64), "model.safetensors": FileEntry(80, "f" * 64)}
PLAIN = Manifest(step=40, run_id="b6", size=2, metrics={"loss": 0.5, "acc": None}, per_rank=["rng"], files=FILES)


def sealed(fields):
    text = json.dumps(fields, indent=1, sort_keys=True) + "\n"
    fields = {**fields, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()


def test_it_comes_back_as_it_was():
    assert decode(encode(PLAIN)) == PLAIN
    assert from_json(json.loads(json.dumps(to_json(PLAIN)))) == PLAIN


scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text())
configs = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.dictionaries(st.text(), configs), st.text(), st.integers(0, 2**61))
def test_any_configuration_and_run_survive(config, run_id, step):
    manifest = Manifest(step=step, run_id=run_id, size=1, config=config, files=FILES)
    assert decode(encode(manifest)) == manifest


def test_the_seal_is_what_the_module_says():
    assert encode(PLAIN) == sealed({"schema": 1, **asdict(PLAIN)})


@pytest.mark.parametrize("change", [b" ", b"\n", b"\t"])
def test_another_spelling_of_the_same_values_is_refused(change):
    with pytest.raises(ValueError, match="not as it was written"):
        decode(encode(PLAIN) + change)
    with pytest.raises(ValueError, match="not as it was written"):
        decode(json.dumps(json.loads(encode(PLAIN))).encode())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema 2; this version reads 1"),
        ({"schema": "1"}, "schema '1'"),
        ({"step": -1}, "step"),
        ({"step": "40"}, "step"),
        ({"step": True}, "step"),
        ({"step": 40.0}, "step"),
        ({"step": 1 << 80}, "step"),
        ({"size": 0}, "size"),
        ({"run_id": None}, "run_id"),
        ({"config": []}, "config"),
        ({"versions": {"torch": 2}}, "versions"),
        ({"metrics": {"loss": "0"}}, "metrics"),
        ({"metrics": {"loss": float("nan")}}, "metrics"),
        ({"metrics": {"loss": True}}, "metrics"),
        ({"per_rank": {"rng": 1}}, "per_rank"),
        ({"per_rank": ["../rng"]}, "per_rank"),
        ({"files": {}}, "files"),
        ({"files": [1]}, "files"),
        ({"files": {"state.json": {"length": 1}}}, "files"),
        ({"files": {"state.json": {"length": -1, "sha256": "0" * 64}}}, "files"),
        ({"files": {"state.json": {"length": True, "sha256": "0" * 64}}}, "files"),
        ({"files": {"state.json": {"length": 1 << 62, "sha256": "0" * 64}}}, "files"),
        ({"files": {"state.json": {"length": 1, "sha256": "F" * 64}}}, "files"),
        ({"files": {"state.json": {"length": 1, "sha256": "0" * 64, "mode": 7}}}, "files"),
        ({"files": {**asdict(PLAIN)["files"], "../x.safetensors": {"length": 1, "sha256": "0" * 64}}}, "files"),
        ({"files": {**asdict(PLAIN)["files"], "/etc/passwd": {"length": 1, "sha256": "0" * 64}}}, "files"),
        ({"files": {**asdict(PLAIN)["files"], "a\0.safetensors": {"length": 1, "sha256": "0" * 64}}}, "files"),
        ({"files": {**asdict(PLAIN)["files"], "m.safetensors\n": {"length": 1, "sha256": "0" * 64}}}, "files"),
        ({"surplus": 1}, "surplus"),
    ],
    ids=str,
)
def test_a_wrong_field_is_refused_even_under_a_right_seal(changes, message):
    with pytest.raises(ValueError, match=message):
        decode(sealed({"schema": 1, **asdict(PLAIN), **changes}))


@pytest.mark.parametrize("name", asdict(PLAIN))
def test_a_missing_field_is_named(name):
    fields = {"schema": 1, **asdict(PLAIN)}
    del fields[name]
    with pytest.raises(ValueError, match=name):
        decode(sealed(fields))


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]\n", b"null\n", b"{}\n", b'{"sha256": 1}', b"{" * 1000])
def test_what_is_no_manifest_is_a_value_error(data):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own words
        decode(data)


def test_a_wrong_seal_is_refused():
    text = encode(PLAIN).replace(b'"step": 40', b'"step": 41')
    with pytest.raises(ValueError, match="does not match its own digest"):
        decode(text)


def test_versions_name_what_matters():
    assert {"hvdtrain", "python", "torch"} <= library_versions().keys()
