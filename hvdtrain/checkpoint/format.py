"""A checkpoint on disk: a directory of safetensors files, `state.json`, and a manifest that is written last.

Reading verifies everything before any value is used. Whatever is wrong with a directory, by accident or on purpose,
ends in one `InvalidCheckpoint`, with nothing loaded, executed or changed.

    step-00000040/
        model.safetensors           the tensors of the entry "model", by their names in its state dict
        optimizer-00001-of-00002.safetensors            those of a large entry are in several files
        optimizer-00002-of-00002.safetensors
        state.json                  {"model": skeleton, "optimizer": skeleton, "rng": skeleton}
        manifest.json               step, run, size, configuration, versions; every file's length and SHA-256

    manifest = write(directory, Snapshot(step=40, run_id="b6", size=2, entries={"model": flatten(state)}))
    checkpoint = read(directory)
    checkpoint.entries["model"]     # the tree that was flattened
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hvdtrain.checkpoint import manifest as manifests
from hvdtrain.checkpoint import parts, tensorfile
from hvdtrain.checkpoint.manifest import STATE, Manifest
from hvdtrain.checkpoint.tensorfile import FileEntry, HashingReader
from hvdtrain.collectives import Json
from hvdtrain.errors import CheckpointError, InvalidCheckpoint
from hvdtrain.statetree import Flat, Leaf, Tree, leaves, unflatten

STATE_LIMIT_BYTES = 256 << 20
DIRECTORY_MODE = 0o700


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that goes into one checkpoint, at rest.

    Attributes:
        step: optimizer updates that led to this state.
        run_id: the run that it belongs to.
        size: ranks of the job.
        entries: top-level name (a word in lower case) -> its tree, taken apart.
        per_rank: the names of those that are a list with one value per rank.
        config: the resolved configuration.
        metrics: name -> value, for retention.
    """

    step: int
    run_id: str
    size: int
    entries: Mapping[str, Flat]
    per_rank: list[str] = field(default_factory=list)
    config: dict[str, Json] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified as a whole."""

    manifest: Manifest
    entries: dict[str, Tree]


def fsync_directory(directory: Path) -> None:
    """Wait until the disk has the names in a directory."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def persist(directory: Path, manifest: Manifest) -> None:
    """Wait until the disk has a checkpoint that was written: every file of it, and their names."""
    for name in (*manifest.files, manifests.NAME):
        with open(directory / name, "rb") as file:
            os.fsync(file.fileno())
    fsync_directory(directory)


def write(directory: Path, snapshot: Snapshot) -> Manifest:
    """Write a snapshot into a new directory and read each file back, the manifest last. `persist` waits for the disk.

    Raises:
        CheckpointError: an entry has a name that cannot be a file's.
        OSError: the disk is full, the directory exists, a file reads back as something else, or anything else that a
            file system says.
    """
    _check_names(snapshot)
    directory.mkdir(mode=DIRECTORY_MODE)
    files = _write_files(directory, dict(_contents(snapshot)))
    manifest = Manifest(
        step=snapshot.step,
        run_id=snapshot.run_id,
        size=snapshot.size,
        config=snapshot.config,
        versions=manifests.library_versions(),
        metrics={name: value if math.isfinite(value) else None for name, value in snapshot.metrics.items()},
        per_rank=snapshot.per_rank,
        files=files,
    )
    tensorfile.write_rows(directory / manifests.NAME, [memoryview(manifests.encode(manifest))])
    return manifest


def _contents(snapshot: Snapshot) -> Iterator[tuple[str, list[memoryview]]]:
    """The bytes of each file but the manifest."""
    for name, flat in snapshot.entries.items():
        found = list(leaves(flat.skeleton))
        for file, run in _files_of(name, found, parts.count_for(found)).items():
            yield file, tensorfile.rows_of({leaf[0]: flat.tensors[leaf[0]] for leaf in run})
    skeletons = {name: flat.skeleton for name, flat in snapshot.entries.items()}
    yield STATE, [memoryview(json.dumps(skeletons, allow_nan=False).encode())]


def _files_of(entry: str, found: list[Leaf], count: int) -> dict[str, list[Leaf]]:
    """The names of the files of an entry, and the tensors of each; none for an entry without tensors."""
    runs = parts.cut(found, count) if found else []
    return {parts.file_name(entry, number, count): run for number, run in enumerate(runs)}


def _write_files(directory: Path, contents: Mapping[str, list[memoryview]]) -> dict[str, FileEntry]:
    """Write files and hash their bytes, side by side: of two threads one writes mostly while the other hashes."""
    with parts.threads(sum(len(row) for rows in contents.values() for row in rows)) as pool:
        writing, hashing = {}, {}
        for file, rows in contents.items():
            writing[file] = pool.submit(tensorfile.write_rows, directory / file, rows)
            hashing[file] = pool.submit(tensorfile.entry_of, rows)
        for future in writing.values():
            future.result()
        return {file: future.result() for file, future in hashing.items()}


def _check_names(snapshot: Snapshot) -> None:
    wrong = [name for name in snapshot.entries if not manifests.ENTRY.fullmatch(name)]
    if wrong:
        raise CheckpointError(f"save the state at step {snapshot.step}", found=f"entries named {wrong}: not [a-z0-9_]+")


def read(directory: Path) -> Checkpoint:
    """Read a checkpoint and verify every byte of it.

    Raises:
        InvalidCheckpoint: it is damaged, incomplete or hostile; the message says what was wrong with which file.
    """
    return _load(directory, "cpu")


def check(directory: Path) -> Manifest:
    """What `read` checks but for the bytes of tensors, which `write` has compared already.

    Raises:
        InvalidCheckpoint: as `read`, but for damage inside the tensors.
    """
    return _load(directory, "meta").manifest


def _load(directory: Path, device: str) -> Checkpoint:
    with _judged(directory), _opened(directory) as fd:
        manifest = _read_manifest(fd)
        skeletons, tensors = _read_contents(fd, manifest, device)
        entries = {name: unflatten(skeleton, tensors[name]) for name, skeleton in skeletons.items()}
        for name in manifest.per_rank:
            if not isinstance(entries.get(name), list) or len(entries[name]) != manifest.size:
                raise ValueError(f"{STATE} does not hold {manifest.size} values of {name!r}")
        return Checkpoint(manifest, entries)


def peek(directory: Path) -> Manifest:
    """The manifest of a checkpoint whose files are there in their full lengths; their contents are not read.

    Raises:
        InvalidCheckpoint: as `read`, but for damage inside the files.
    """
    with _judged(directory), _opened(directory) as fd:
        manifest = _read_manifest(fd)
        for name, expected in manifest.files.items():
            with _named(name), tensorfile.open_regular(name, directory=fd) as file:
                HashingReader(file, expected)
        return manifest


@contextmanager
def _judged(directory: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, OverflowError, RuntimeError, MemoryError) as error:  # RuntimeError: torch, recursion
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise InvalidCheckpoint(
            f"read the checkpoint {directory}",
            found=reason,
            remedy="remove it or restore it from a copy; --resume auto takes the newest one that is valid",
        ) from error


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _read_manifest(directory: int) -> Manifest:
    with tensorfile.open_regular(manifests.NAME, directory=directory) as file:
        length = os.fstat(file.fileno()).st_size
        if length > manifests.LIMIT_BYTES:
            raise ValueError(f"{manifests.NAME} is {length} bytes long, more than {manifests.LIMIT_BYTES}")
        return manifests.decode(file.read(length))


def _read_contents(
    directory: int, manifest: Manifest, device: str
) -> tuple[dict[str, Json], dict[str, dict[str, Tensor]]]:
    """The skeletons and tensors of all entries."""
    skeletons = _read_state(directory, manifest.files[STATE])
    counts = Counter(parts.entry_of(file) for file in manifest.files if file != STATE)
    runs: dict[str, list[Leaf]] = {}
    for name, skeleton in skeletons.items():
        runs |= _files_of(name, list(leaves(skeleton)), max(1, counts[name]))
    if runs.keys() | {STATE} != manifest.files.keys():
        raise ValueError(f"{STATE} and {manifests.NAME} disagree on the files that there are")

    def read_file(file_name: str) -> dict[str, Tensor]:
        with _named(file_name), tensorfile.open_regular(file_name, directory=directory) as file:
            return tensorfile.read(file, runs[file_name], manifest.files[file_name], device=device)

    tensors: dict[str, dict[str, Tensor]] = {name: {} for name in skeletons}
    with parts.threads(sum(manifest.files[file].length for file in runs)) as pool:
        for file, found in zip(runs, pool.map(read_file, runs), strict=True):
            tensors[parts.entry_of(file)] |= found
    return skeletons, tensors


def _read_state(directory: int, expected: FileEntry) -> dict[str, Json]:
    with _named(STATE), tensorfile.open_regular(STATE, directory=directory) as file:
        if expected.length > STATE_LIMIT_BYTES:
            raise ValueError(f"longer than {STATE_LIMIT_BYTES} bytes")
        reader = HashingReader(file, expected)
        data = reader.read(expected.length)
        reader.finish()
        skeletons: Any = json.loads(data)
        if not isinstance(skeletons, dict) or not all(map(manifests.ENTRY.fullmatch, skeletons)):
            raise ValueError("not a table of entries")
        return skeletons
