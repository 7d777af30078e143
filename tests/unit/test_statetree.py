"""A tree of state survives being taken apart, whatever is in it, and what is not plain is refused by its path."""

import json
import math
from collections import Counter, OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.statetree import (
    DTYPES,
    MAX_DEPTH,
    _chunks,
    broadcast_tree,
    digest,
    digests,
    flatten,
    from_json,
    leaves,
    raw_bytes,
    to_json,
    tree_digest,
    unflatten,
)

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # torch says so once a process


def same(a, b):
    """Equal in value, type and bits; NaN equals NaN, 0.0 does not equal -0.0, nor True 1."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((raw_bytes(a) == raw_bytes(b)).all())
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return (
            list(a) == list(b)
            and all(type(x) is type(y) for x, y in zip(a, b, strict=True))
            and all(same(a[key], b[key]) for key in a)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return math.isnan(a) == math.isnan(b) and repr(a) == repr(b)
    return a == b


@st.composite
def dense_tensors(draw):
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape) * torch.empty(0, dtype=dtype).itemsize
    if dtype is torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype).reshape(shape)
    row = draw(st.binary(min_size=count, max_size=count))
    if not row:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(row), dtype=torch.uint8).view(dtype).reshape(shape)


plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), dense_tensors())
keys = st.one_of(st.text(max_size=4), st.integers(), st.sampled_from(["tensor", "dict", "0", "0.0", 0, "__metadata__"]))
trees = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(trees)
@settings(max_examples=300, deadline=None)
def test_what_goes_in_comes_out_through_json(tree):
    flat = flatten(tree)
    text = json.dumps(flat.skeleton, allow_nan=False)
    assert same(unflatten(json.loads(text), flat.tensors), tree)
    assert [leaf[0] for leaf in leaves(flat.skeleton)] == list(flat.tensors)


@given(trees)
@settings(max_examples=100, deadline=None)
def test_the_small_form_holds_the_tensors_too(tree):
    assert same(from_json(json.loads(json.dumps(to_json(tree)))), tree)


def test_every_dtype_of_the_table_has_bytes():
    for dtype in DTYPES.values():
        assert raw_bytes(torch.empty((2, 3), dtype=dtype)).numel() == 6 * dtype.itemsize


def test_a_single_element_of_a_strided_row_has_bytes():
    for tensor in (torch.arange(4.0)[::4], torch.arange(6.0).reshape(2, 3)[1:, ::3], torch.tensor([2j]).imag):
        assert raw_bytes(tensor).view(tensor.dtype).tolist() == tensor.reshape(-1).tolist()


def test_names_are_the_paths_and_stay_unique():
    a, b, c, d = torch.zeros(4, 1).unbind()
    flat = flatten({"x": {"y": a, 0: b, "0": c}, "x.y": d})
    assert list(flat.tensors) == ["x.y", "x.0", "x.0#2", "x.y#2"]


def test_tied_and_strided_tensors_keep_their_values():
    weight = torch.arange(6.0).reshape(2, 3)
    flat = flatten({"embedding": weight, "head": weight, "turned": weight.t(), "conjugate": torch.tensor([1j]).conj()})
    back = unflatten(flat.skeleton, flat.tensors)
    assert raw_bytes(back["turned"]).view(torch.float32).tolist() == [0, 3, 1, 4, 2, 5]
    assert raw_bytes(back["conjugate"]).view(torch.complex64).tolist() == [-1j]
    assert torch.equal(back["head"], weight)


def test_parameters_become_tensors_without_history():
    flat = flatten({"weight": torch.nn.Parameter(torch.ones(2))})
    assert not flat.tensors["weight"].requires_grad


def test_an_ordered_dict_comes_back_plain():
    assert same(unflatten(*vars(flatten(OrderedDict(a=1))).values()), {"a": 1})


def nested(levels):
    return [] if levels == 0 else [nested(levels - 1)]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"optimizer": {"state": {0: {"foo": print}}}}, r"^optimizer\.state\.0\.foo: a builtin_function_or_method$"),
        ({"a": [1, {2}]}, r"^a\.1: a set$"),
        ({"a": torch.Size([1])}, r"^a: a Size$"),
        ({"milestones": Counter("ab")}, r"^milestones: a Counter$"),
        ({True: 1}, r"^the state: a key True that is a bool$"),
        ({"a": {(1,): 1}}, r"^a: a key \(1,\) that is a tuple$"),
        ({"a": torch.eye(2).to_sparse()}, r"^a: a tensor that is not dense"),
        ({"a": torch.empty(2, device="meta")}, r"^a: a tensor on the meta device"),
        (b"bytes", r"^the state: a bytes$"),
        (nested(MAX_DEPTH + 1), "nested deeper than"),
    ],
)
def test_what_is_not_plain_is_refused_by_its_path(tree, message):
    with pytest.raises(TypeError, match=message):
        flatten(tree)


@pytest.mark.parametrize(
    "skeleton",
    [
        {},
        {"dict": []},
        {"dict": {}, "map": []},
        {"map": {}},
        {"map": [[1]]},
        {"map": [[None, 1]]},
        {"map": [[True, 1]]},
        {"map": [[[], 1]]},
        {"tuple": {}},
        {"float": "1"},
        {"float": 1.0},
        {"tensor": None},
        {"tensor": ["w", "float32"]},
        {"tensor": ["w", "float32", [-1]]},
        {"tensor": ["w", "float32", [True]]},
        {"tensor": ["w", "float32", 2]},
        {"tensor": ["w", "qint8", [2]]},
        {"tensor": ["w", "float64", [2]]},
        {"tensor": ["w", "float32", [2, 1]]},
        {"tensor": ["v", "float32", [2]]},
        {"tensor": ["w", "float32", [2]], "more": 1},
        {"eval": "1"},
        nested(MAX_DEPTH + 2),
    ],
    ids=str,
)
def test_a_skeleton_that_means_nothing_is_refused(skeleton):
    with pytest.raises(ValueError, match=r"skeleton|tensor"):
        unflatten(skeleton, {"w": torch.zeros(2)})


def test_the_digest_sees_names_dtypes_shapes_bytes_and_order():
    w, v = torch.zeros(2, 3), torch.ones(1)
    seen = {
        digest(named)
        for named in (
            {"w": w, "v": v},
            {"v": v, "w": w},
            {"w": w},
            {"x": w, "v": v},
            {"w": w.reshape(3, 2), "v": v},
            {"w": w.to(torch.int32), "v": v},
            {"w": -w, "v": v},
            {"w": w, "v": v.reshape(())},
        )
    }
    assert len(seen) == 8
    assert digest({"w": w.t().contiguous().t(), "v": v}) == digest([("w", w), ("v", v)])


def test_the_definition_of_the_digest_does_not_move():
    named = {"w": torch.tensor([[1.0, 2.0]]), "n": torch.tensor(3)}
    assert digest(named) == "b8c1db456f828f0cec20669d4f5185691ededf09a8d11d6640f62feec574c242"


def test_single_digests_name_the_tensor():
    a, b = {"w": torch.zeros(2), "v": torch.zeros(2)}, {"w": torch.zeros(2), "v": torch.ones(2)}
    assert [name for name in a if digests(a)[name] != digests(b)[name]] == ["v"]


def test_the_digest_of_a_tree_sees_what_is_no_tensor():
    assert tree_digest({"a": 1}) != tree_digest({"a": 1.0}) != tree_digest({"a": (1,)})


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 30)), max_size=6, unique_by=lambda p: p[0]))
def test_chunks_cover_every_byte_once_and_are_full(sizes):
    chunks = list(_chunks(sizes, limit=7))
    covered = [(name, i) for pieces in chunks for name, start, stop in pieces for i in range(start, stop)]
    assert covered == [(name, i) for name, size in sizes for i in range(size)]
    assert all(sum(stop - start for _, start, stop in pieces) == 7 for pieces in chunks[:-1])


def test_alone_the_tree_is_its_own_broadcast():
    tree = {"w": torch.ones(2), 0: (1, None)}
    assert broadcast_tree(tree, Collectives(SoloTransport())) is tree
    with pytest.raises(TypeError, match="hook"):
        broadcast_tree({"hook": print}, Collectives(SoloTransport()))
