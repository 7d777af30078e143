"""State as a tree of plain values and tensors, taken apart into a JSON skeleton and named tensors, and put together.

What goes in comes out: ints are no floats, tuples no lists, and the key 0 is not the key "0". Anything that is not
plain (a function, a NumPy number, a sparse tensor) is refused by its path, so nothing ever needs a pickle.

    flat = flatten({"model": model.state_dict(), "step": 40})
    flat.skeleton                    # {"dict": {"model": {"dict": {"weight": {"tensor": [...]}}}, "step": 40}}
    flat.tensors                     # {"model.weight": tensor(...)}: detached, not copied
    unflatten(flat.skeleton, flat.tensors)
    flatten({"hook": print})         # TypeError: hook: a builtin_function_or_method
    digest(model.state_dict())       # "9f86d081..."; equal on two ranks when every bit of every tensor is
    state = broadcast_tree(state, collectives)

In the skeleton a JSON object is always one tag with one body: `dict` (string keys), `map` (pairs, for other keys),
`tuple`, `float` (the three that JSON lacks) or `tensor` (name, dtype, shape). Everything else stands for itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hvdtrain.collectives import Collectives, Json

Tree: TypeAlias = Any  # None, bool, int, float, str, Tensor, or a list, tuple or dict (keys str or int) of such
Leaf: TypeAlias = tuple[str, str, list[int]]  # name, dtype, shape

MAX_DEPTH = 64
CHUNK_BYTES = 64 << 20  # of one broadcast: large enough to be bandwidth-bound, small beside the tensors themselves

_DTYPE_NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
    "complex128 complex64 complex32 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
)
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPE_NAMES.split() if hasattr(torch, name)}
_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Flat:
    """A tree taken apart.

    Attributes:
        skeleton: the JSON value that holds everything but the tensors' elements.
        tensors: detached tensors by name, in the order of the tree; each name is unique and stands in the skeleton.
    """

    skeleton: Json
    tensors: dict[str, Tensor]


def flatten(tree: Tree) -> Flat:
    """Take a tree apart, without copying any tensor.

    A tensor that stands twice in the tree (tied weights) is named twice. An `OrderedDict` comes back as a plain dict.

    Raises:
        TypeError: something in it is not a plain value; the message begins with its path.
    """
    tensors: dict[str, Tensor] = {}
    return Flat(_take_apart(tree, (), tensors), tensors)


def _take_apart(node: Tree, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Json:
    kind = type(node)
    if node is None or kind in (bool, int, str):
        plain: Json = node
        return plain
    if kind is float:
        return node if math.isfinite(node) else {"float": str(node)}
    if isinstance(node, Tensor):
        return {"tensor": _name_tensor(node, path, tensors)}
    if len(path) >= MAX_DEPTH:
        raise TypeError(f"{_dotted(path)}: nested deeper than {MAX_DEPTH} levels, or a cycle")
    if kind is list:
        return [_take_apart(value, (*path, str(i)), tensors) for i, value in enumerate(node)]
    if kind is tuple:
        return {"tuple": [_take_apart(value, (*path, str(i)), tensors) for i, value in enumerate(node)]}
    if kind in (dict, OrderedDict):
        return _take_apart_dict(node, path, tensors)
    raise TypeError(f"{_dotted(path)}: a {kind.__name__}")


def _take_apart_dict(node: Mapping[Any, Tree], path: tuple[str, ...], tensors: dict[str, Tensor]) -> Json:
    for key in node:
        if type(key) not in (str, int):
            raise TypeError(f"{_dotted(path)}: a key {key!r} that is a {type(key).__name__}")
    values = {key: _take_apart(value, (*path, str(key)), tensors) for key, value in node.items()}
    if all(type(key) is str for key in values):
        return {"dict": values}
    return {"map": [[key, value] for key, value in values.items()]}


def _name_tensor(tensor: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Json:
    fault = _fault_of(tensor)
    if fault:
        raise TypeError(f"{_dotted(path)}: {fault}")
    name = base = ".".join(path) or "value"
    repeat = 1
    while name in tensors or name == "__metadata__":  # reserved by safetensors
        repeat += 1
        name = f"{base}#{repeat}"
    tensors[name] = tensor.detach()
    return [name, _NAME_OF[tensor.dtype], list(tensor.shape)]


def _fault_of(tensor: Tensor) -> str:
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"a tensor that is not dense ({tensor.layout})"
    if tensor.is_meta:
        return "a tensor on the meta device, without values"
    return "" if tensor.dtype in _NAME_OF else f"a tensor of {tensor.dtype}"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path) or "the state"


def unflatten(skeleton: Json, tensors: Mapping[str, Tensor]) -> Tree:
    """Put a tree together again; the inverse of `flatten`. The tensors are taken as they are, on any device.

    Raises:
        ValueError: the skeleton is no such thing, or a tensor is missing or of another dtype or shape.
    """
    return _put_together(skeleton, tensors, 0)


def _put_together(node: Any, tensors: Mapping[str, Tensor], depth: int) -> Tree:
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if depth > MAX_DEPTH:
        raise ValueError(f"the skeleton is nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, list):
        return [_put_together(value, tensors, depth + 1) for value in node]
    match node:
        case {"dict": dict(body), **rest} if not rest:
            return {key: _put_together(value, tensors, depth + 1) for key, value in body.items()}
        case {"map": list(pairs), **rest} if not rest and all(map(_is_pair, pairs)):
            return {key: _put_together(value, tensors, depth + 1) for key, value in pairs}
        case {"tuple": list(body), **rest} if not rest:
            return tuple(_put_together(value, tensors, depth + 1) for value in body)
        case {"float": "inf" | "-inf" | "nan" as text, **rest} if not rest:
            return float(text)
        case {"tensor": body, **rest} if not rest:
            return _find_tensor(leaf_of(body), tensors)
    raise ValueError(f"the skeleton has a node that means nothing: {str(node)[:80]}")


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)


def _find_tensor(leaf: Leaf, tensors: Mapping[str, Tensor]) -> Tensor:
    name, dtype, shape = leaf
    tensor = tensors.get(name)
    if tensor is None:
        raise ValueError(f"the tensor {name!r} is missing")
    if tensor.dtype != DTYPES[dtype] or list(tensor.shape) != shape:
        raise ValueError(f"the tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {shape}")
    return tensor


def leaf_of(body: object) -> Leaf:
    """The (name, dtype, shape) in the body of a `tensor` node.

    Raises:
        ValueError: it is something else.
    """
    match body:
        case [str(name), str(dtype), list(shape)] if dtype in DTYPES and all(map(_is_length, shape)):
            return name, dtype, shape
    raise ValueError(f"the skeleton has a tensor that is none: {str(body)[:80]}")


def _is_length(length: object) -> bool:
    return type(length) is int and 0 <= length < 1 << 62


def leaves(skeleton: Json) -> Iterator[Leaf]:
    """The (name, dtype, shape) of every tensor in a skeleton, in the order of the tree.

    Raises:
        ValueError: a tensor node is malformed. Other nodes are judged by `unflatten`.
    """
    pending: list[Any] = [skeleton]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if "tensor" in node:
                yield leaf_of(node["tensor"])
            # a dict's body may itself have a key "tensor": look below tags, never below a tensor
            pending.extend(reversed([_body(tag, body) for tag, body in node.items() if tag != "tensor"]))
        elif isinstance(node, list):
            pending.extend(reversed(node))


def _body(tag: str, body: Json) -> Json:
    return list(body.values()) if tag == "dict" and isinstance(body, dict) else body


def raw_bytes(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor as one row of uint8 in host memory: (nbytes,); a view where that is possible."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    row = plain.reshape(-1)  # (elements,)
    if row.numel() == 1:
        row = row.as_strided((1,), (1,))  # a single element is contiguous by any stride, but can be viewed by 1 alone
    return row.view(torch.uint8)  # (elements * itemsize,)


def digest(named: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> str:
    """The hexadecimal SHA-256 of names, dtypes, shapes and bytes, in the order given (`weights_sha256` of a run).

    Each tensor adds one line of JSON, ``[name, dtype, shape]``, and its elements as they lie in memory.
    """
    hasher = hashlib.sha256()
    for name, tensor in _pairs(named):
        _add(hasher, name, tensor)
    return hasher.hexdigest()


def digests(named: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """The digest of each tensor by its name, to find the first one in which two ranks differ."""
    return {name: digest([(name, tensor)]) for name, tensor in _pairs(named)}


def tree_digest(tree: Tree) -> str:
    """The SHA-256 of a whole tree: of its skeleton and of its tensors."""
    flat = flatten(tree)
    return hashlib.sha256((json.dumps(flat.skeleton) + digest(flat.tensors)).encode()).hexdigest()


def _pairs(named: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    return named.items() if isinstance(named, Mapping) else named


def _add(hasher: hashlib._Hash, name: str, tensor: Tensor) -> None:
    head = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    hasher.update(json.dumps(head).encode() + b"\n")
    hasher.update(raw_bytes(tensor).numpy().data)


def broadcast_tree(tree: Tree, collectives: Collectives, name: str = "hvdtrain.tree") -> Tree:
    """Collective: root's whole tree on every rank; what the others pass is not read.

    The skeleton travels as JSON, the tensors packed into chunks of `CHUNK_BYTES`. Root gets the tree that it gave; the
    others get new tensors in host memory.

    Raises:
        TypeError: root's tree is not plain (on root; `RootFailed` with the same text on the others).
    """
    is_root = collectives.topology.is_root
    skeleton = collectives.on_root(lambda: flatten(tree).skeleton)
    if collectives.topology.size == 1:
        return tree
    mine = flatten(tree).tensors if is_root else {leaf[0]: _empty(leaf) for leaf in leaves(skeleton)}
    rows = {leaf: raw_bytes(tensor) for leaf, tensor in mine.items()}
    for pieces in _chunks((leaf, row.numel()) for leaf, row in rows.items()):
        _broadcast_chunk(rows, pieces, collectives, name)
    return tree if is_root else unflatten(skeleton, mine)


def _empty(leaf: Leaf) -> Tensor:
    return torch.empty(leaf[2], dtype=DTYPES[leaf[1]])


def _broadcast_chunk(
    rows: dict[str, Tensor], pieces: list[tuple[str, int, int]], collectives: Collectives, name: str
) -> None:
    packed = torch.cat([rows[leaf][start:stop] for leaf, start, stop in pieces])
    packed = collectives.broadcast(packed, f"{name}.data")
    if collectives.topology.is_root:
        return
    offset = 0
    for leaf, start, stop in pieces:
        rows[leaf][start:stop] = packed[offset : offset + stop - start]
        offset += stop - start


def _chunks(sizes: Iterable[tuple[str, int]], limit: int = CHUNK_BYTES) -> Iterator[list[tuple[str, int, int]]]:
    """Cut the rows, laid end to end, into chunks of at most `limit` bytes: lists of (name, start, stop)."""
    pieces: list[tuple[str, int, int]] = []
    room = limit
    for leaf, size in sizes:
        start = 0
        while start < size:
            stop = min(size, start + room)
            pieces.append((leaf, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield pieces
                pieces, room = [], limit
    if pieces:
        yield pieces


def to_json(tree: Tree) -> Json:
    """A small tree as one JSON value, its tensors in base64: for what `gather_json` must carry."""
    flat = flatten(tree)
    data = {name: base64.b64encode(raw_bytes(t).numpy().tobytes()).decode() for name, t in flat.tensors.items()}
    return {"skeleton": flat.skeleton, "tensors": {**data}}


def from_json(value: Any) -> Tree:
    """The inverse of `to_json`."""
    tensors = {leaf[0]: _empty(leaf) for leaf in leaves(value["skeleton"])}
    for name, tensor in tensors.items():
        data = bytearray(base64.b64decode(value["tensors"][name]))
        if data:
            raw_bytes(tensor).copy_(torch.frombuffer(data, dtype=torch.uint8))
    return unflatten(value["skeleton"], tensors)
