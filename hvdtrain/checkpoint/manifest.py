"""What a checkpoint says about itself: which run and step, how it was made, and the hash of every file beside it.

The manifest is written last, so a directory without one is no checkpoint. It is sealed by a digest of itself, and has
exactly one spelling: bytes that do not re-encode to themselves are refused, down to the white space.

    text = encode(manifest)                        # bytes of JSON
    manifest = decode(text)                        # ValueError when anything about it is wrong
    manifest.step, manifest.files["model.safetensors"].length
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hvdtrain import __version__
from hvdtrain.checkpoint.tensorfile import FileEntry
from hvdtrain.collectives import Json

SCHEMA = 1
NAME = "manifest.json"
STATE = "state.json"
LIMIT_BYTES = 64 << 20
ENTRY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FILE = re.compile(r"state\.json|[a-z][a-z0-9_]{0,63}(-\d{5}-of-\d{5})?\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One checkpoint in words and numbers.

    Attributes:
        step: optimizer updates that led to this state.
        run_id: the run that it belongs to.
        size: ranks of the job that wrote it.
        config: the resolved configuration, as JSON.
        versions: library name -> version.
        metrics: what retention may judge by; None for a value that was not finite.
        per_rank: top-level entries that hold one value per rank.
        files: file name -> length and hash.
    """

    step: int
    run_id: str
    size: int
    config: dict[str, Json] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    per_rank: list[str] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)


@cache
def library_versions() -> dict[str, str]:
    """The versions, of this process, of all that can change what a checkpoint means."""
    found = {"hvdtrain": __version__, "python": platform.python_version()}
    for name in ("torch", "horovod", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def encode(manifest: Manifest) -> bytes:
    """The one spelling of a manifest, its digest included."""
    fields = {"schema": SCHEMA, **asdict(manifest)}
    return _dump({**fields, "sha256": _digest(fields)})


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(_dump(fields)).hexdigest()


def decode(data: bytes) -> Manifest:
    """The inverse of `encode`.

    Raises:
        ValueError: it is no manifest, of another schema, or not as it was written.
        RecursionError: it is nested too deeply to be read.
    """
    fields = json.loads(data)
    if not isinstance(fields, dict) or _dump(fields) != data:
        raise ValueError(f"{NAME} is not as it was written")
    sha256, schema = fields.pop("sha256", None), fields.get("schema")
    if schema != SCHEMA:
        raise ValueError(f"{NAME} has schema {schema!r}; this version reads {SCHEMA}")
    if sha256 != _digest(fields):
        raise ValueError(f"{NAME} does not match its own digest")
    return from_json(fields)


def from_json(fields: dict[str, Any]) -> Manifest:
    """A manifest from its JSON form, every value of the right kind.

    Raises:
        ValueError: a field is missing, unknown, or of the wrong kind; all such are named.
    """
    fields = {name: value for name, value in fields.items() if name != "schema"}
    faults = sorted(fields.keys() ^ _CHECKS.keys())
    faults = faults or [name for name, check in _CHECKS.items() if not check(fields[name])]
    if faults:
        raise ValueError(f"{NAME} has no sound {', '.join(faults)}")
    files = {name: FileEntry(**entry) for name, entry in fields["files"].items()}
    return Manifest(**{**fields, "files": files})


def to_json(manifest: Manifest) -> dict[str, Json]:
    """The JSON form of a manifest."""
    return asdict(manifest)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < 1 << 62


def _table(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_metric(value: Any) -> bool:
    return value is None or (type(value) is float and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_entries(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and ENTRY.fullmatch(name) for name in value)


def _are_files(value: Any) -> bool:
    if not isinstance(value, dict) or STATE not in value:
        return False
    return all(_FILE.fullmatch(name) and _is_file(entry) for name, entry in value.items())


def _is_file(entry: Any) -> bool:
    match entry:
        case {"length": int(length), "sha256": str(sha256), **rest} if not rest:
            return type(length) is int and 0 <= length < 1 << 62 and _SHA256.fullmatch(sha256) is not None
    return False


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "step": _whole(0),
    "run_id": _is_text,
    "size": _whole(1),
    "config": _table(lambda _: True),
    "versions": _table(_is_text),
    "metrics": _table(_is_metric),
    "per_rank": _are_entries,
    "files": _are_files,
}
