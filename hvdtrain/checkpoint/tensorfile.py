"""One safetensors file: named tensors, read back when written, and read only as what they are expected to be.

Reading parses nothing: the header that must be there follows from the expected names, dtypes and shapes, and is
compared byte by byte. So no header, however absurd, can make the reader allocate more than the file is long.

    rows = rows_of(model.state_dict())
    write_rows(Path("model.safetensors"), rows)
    entry = entry_of(rows)                                             # FileEntry(length=1234, sha256="9f86...")
    with open_regular("model.safetensors", directory=fd) as file:
        tensors = read(file, leaves(skeleton), entry)                  # ValueError when a single bit is wrong

Any reader of safetensors can read the files. Dtypes unknown to that format are stored as rows of U8.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from hvdtrain.statetree import DTYPES, Leaf, raw_bytes

CHUNK_BYTES = 4 << 20  # hashed and written in turn: fits a cache, and other threads get the interpreter in between
_memcmp = ctypes.CDLL(None).memcmp  # twice as fast as numpy's comparison, which writes its verdict on each byte
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2

_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True)
class FileEntry:
    """What a manifest says about one file: its length in bytes and its hexadecimal SHA-256."""

    length: int
    sha256: str


def nbytes(leaf: Leaf) -> int:
    """The bytes of the elements of a tensor."""
    return math.prod(leaf[2]) * DTYPES[leaf[1]].itemsize


def layout(leaves: Iterable[Leaf]) -> list[Leaf]:
    """The order of tensors in a file: wide elements first, so that each tensor is aligned."""
    return sorted(leaves, key=lambda leaf: -DTYPES[leaf[1]].itemsize)


def header(leaves: Iterable[Leaf]) -> bytes:
    """The bytes before the first tensor of the file that holds these tensors, the length field included."""
    table, offset = {}, 0
    for leaf in layout(leaves):
        name, dtype, shape = leaf
        stop = offset + nbytes(leaf)
        code, length = _CODES.get(dtype, "U8"), shape if dtype in _CODES else [stop - offset]
        table[name] = {"dtype": code, "shape": length, "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(row: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(row), CHUNK_BYTES):
        yield row[start : start + CHUNK_BYTES]


def create(path: Path) -> BinaryIO:
    """Open a file that must not exist yet, for writing, readable and writable by its owner alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=1 << 20)


def begin_writeback(file: BinaryIO, start: int, count: int) -> None:
    """Let the disk begin with some bytes that were written, so that it works while the next ones are hashed.

    A hint (sync_file_range(2), Linux) on which nothing depends; a file system that does not know it does nothing.
    """
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(file.fileno(), ctypes.c_int64(start), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


def write_rows(path: Path, rows: Iterable[memoryview]) -> None:
    """Write rows of bytes to a new file and read them back; the disk has begun with them, and is not waited for.

    Raises:
        OSError: the file exists, the disk is full, or what is read back is not what was written.
    """
    _write(path, rows)
    _read_back(path, rows)


def entry_of(rows: Iterable[memoryview]) -> FileEntry:
    """What a manifest says about the file of these rows."""
    hasher, length = hashlib.sha256(), 0
    for row in rows:
        length += len(row)
        for chunk in _chunks(row):
            hasher.update(chunk)
    return FileEntry(length, hasher.hexdigest())


def _write(path: Path, rows: Iterable[memoryview]) -> None:
    written = 0
    with create(path) as file:
        for row in rows:
            for chunk in _chunks(row):
                file.write(chunk)
                begin_writeback(file, written, len(chunk))
                written += len(chunk)


def _read_back(path: Path, rows: Iterable[memoryview]) -> None:
    """Compare a file with the rows that were written to it."""
    buffer = np.empty(CHUNK_BYTES, np.uint8)
    with path.open("rb", buffering=0) as file:
        for row in rows:
            for chunk in _chunks(row):
                written = np.frombuffer(chunk, np.uint8)
                if not _fill(file, buffer.data[: len(chunk)]) or _memcmp(buffer.ctypes, written.ctypes, len(chunk)):
                    raise OSError(errno.EIO, "reads back as other bytes than were written", str(path))


def rows_of(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The bytes of the safetensors file that holds these tensors: its header, then each tensor where it lies."""
    leaves = [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()]
    rows = [raw_bytes(tensors[leaf[0]]).numpy().data for leaf in layout(leaves)]
    return [memoryview(header(leaves)), *rows]


def _fill(file: BinaryIO, row: memoryview) -> bool:
    """Fill a row with the next bytes of an unbuffered file; false if it ends before."""
    filled = 0
    while filled < len(row):
        count = file.readinto(row[filled:])  # type: ignore[attr-defined]
        if not count:
            return False
        filled += count
    return True


def open_regular(name: str, *, directory: int) -> BinaryIO:
    """Open a file of an open directory for reading, provided that it is a plain one.

    Raises:
        OSError: it is missing, a symbolic link, or may not be read.
        ValueError: it is a device, a pipe or a directory.
    """
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{name} is not a regular file")
    return os.fdopen(fd, "rb", buffering=0)


class HashingReader:
    """Reads a file to its end exactly once, hashing what passes; `finish` says whether it was the file expected.

    Raises:
        ValueError: from the start when the length is wrong, at the end when the hash is.
    """

    def __init__(self, file: BinaryIO, expected: FileEntry) -> None:
        found = os.fstat(file.fileno()).st_size
        if found != expected.length:
            raise ValueError(f"{found} bytes long, not {expected.length}")
        self._file, self._expected, self._hasher = file, expected, hashlib.sha256()

    def readinto(self, row: memoryview) -> None:
        """Fill `row` with the next bytes."""
        for chunk in _chunks(row):
            if not _fill(self._file, chunk):
                raise ValueError("ends early")
            self._hasher.update(chunk)

    def read(self, count: int) -> bytes:
        """The next bytes, of which there must be so many."""
        row = bytearray(count)
        self.readinto(memoryview(row))
        return bytes(row)

    def finish(self) -> None:
        """Compare the hash of everything read with the one expected."""
        if self._hasher.hexdigest() != self._expected.sha256:
            raise ValueError("its SHA-256 differs from the manifest's")


def read(file: BinaryIO, leaves: Iterable[Leaf], expected: FileEntry, *, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a file, each checked to be what its leaf says, the whole by its hash.

    Args:
        file: an open file at its beginning.
        leaves: (name, dtype, shape) of every tensor that the file must hold, and no other.
        expected: its length and hash.
        device: `cpu`, or `meta` to check length and header alone; the tensors then have no values.

    Raises:
        ValueError: it is another file, damaged, or not the whole of it.
    """
    ordered = layout(leaves)
    head, body = header(ordered), sum(map(nbytes, ordered))
    if len(head) + body != expected.length:
        raise ValueError(f"{expected.length} bytes cannot hold the tensors of state.json ({len(head) + body} bytes)")
    reader = HashingReader(file, expected)
    if reader.read(len(head)) != head:
        raise ValueError("its header does not list the tensors of state.json")
    tensors = {name: torch.empty(shape, dtype=DTYPES[dtype], device=device) for name, dtype, shape in ordered}
    if device != "meta":
        for tensor in tensors.values():
            reader.readinto(raw_bytes(tensor).numpy().data)
        reader.finish()
    return tensors
