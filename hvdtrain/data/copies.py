"""Copies of files: what a source holds, and whether a copy of it is whole and unchanged.

A listing names each file by its path below the source, with length and time of change; the SHA-256 of the contents
comes to it when they are read. A copy is good when every byte of it has the hash of its listing.

    listing = list_files(Path("/shared/imagenet"))
    listing.total_bytes
    fault_of(Path("/local/imagenet"), listing)          # "" or what is wrong with it: "train/7.jpg: 3 bytes of 90"
    write_record(Path("/local/imagenet"), listing, through=Path("/local/.tmp"))     # remembers it beside the copy
    read_record(Path("/local/imagenet"))
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hvdtrain.errors import StagingError


@dataclass(frozen=True)
class Entry:
    """One file of a source.

    Attributes:
        path: below the source, with slashes; empty when the source itself is a file.
        length: in bytes.
        mtime_ns: when it was changed last.
        sha256: of its contents, in hexadecimal; empty until they were read.
    """

    path: str
    length: int
    mtime_ns: int
    sha256: str = ""

    def below(self, root: Path) -> Path:
        """Where this file is in a copy at `root`."""
        return root / self.path if self.path else root


@dataclass(frozen=True)
class Listing:
    """The files of a source, in the order of their paths."""

    entries: tuple[Entry, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes in all files."""
        return sum(entry.length for entry in self.entries)

    @property
    def is_file(self) -> bool:
        """Whether the source itself is a file."""
        return [entry.path for entry in self.entries] == [""]

    def same_source(self, other: Listing) -> bool:
        """Whether both list the same files by path, length and time of change."""
        return [_seen(entry) for entry in self.entries] == [_seen(entry) for entry in other.entries]

    def as_json(self) -> list[Any]:
        """As JSON values."""
        return [asdict(entry) for entry in self.entries]


def _seen(entry: Entry) -> tuple[str, int, int]:
    return entry.path, entry.length, entry.mtime_ns


def listing_of_json(value: Any) -> Listing:
    """The inverse of `Listing.as_json`.

    Raises:
        ValueError: it is no such value, or a path would lead out of the copy.
    """
    try:
        listing = Listing(tuple(Entry(**fields) for fields in value))
        paths = [PurePosixPath(entry.path) for entry in listing.entries]
    except TypeError as error:
        raise ValueError(f"no listing of files: {error}") from error
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError("a path that leads out of the copy")
    return listing


def list_files(source: Path) -> Listing:
    """The files at or below `source`; symbolic links to files count as the files, those to directories are refused.

    Raises:
        StagingError: there is nothing, or something that is neither a file nor a directory.
    """
    if source.is_file():
        return Listing((_entry("", source),))
    if not source.is_dir():
        raise StagingError(f"stage {source}", found="no such file or directory", remedy="check the path on rank zero")
    paths = sorted(_walk(source))
    return Listing(tuple(_entry(path.relative_to(source).as_posix(), path) for path in paths))


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.is_dir():
            if path.is_symlink():
                raise StagingError(f"stage {path}", found="a symbolic link to a directory", remedy="stage its target")
            yield from _walk(path)
        else:
            yield path


def _entry(name: str, path: Path) -> Entry:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise StagingError(f"stage {path}", found="neither a file nor a directory")
    return Entry(name, found.st_size, found.st_mtime_ns)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault_of(root: Path, listing: Listing) -> str:
    """What is wrong with the copy at `root`, or nothing; every byte of it is read."""
    if not root.exists():
        return f"{root}: missing"
    for entry in listing.entries:
        path = entry.below(root)
        if path.is_symlink() or not path.is_file():
            return f"{path}: missing"
        if path.stat().st_size != entry.length:
            return f"{path}: {path.stat().st_size} bytes of {entry.length}"
    names = {entry.path for entry in listing.entries}
    for path in () if listing.is_file else root.rglob("*"):
        if not path.is_dir() and path.relative_to(root).as_posix() not in names:
            return f"{path}: not in the source"
    for entry in listing.entries:
        if sha256_of(entry.below(root)) != entry.sha256:
            return f"{entry.below(root)}: other contents"
    return ""


def record_path(copy: Path) -> Path:
    """The file beside a copy that says what is in it."""
    return copy.parent / f".{copy.name}.staged.json"


def write_record(copy: Path, listing: Listing, *, through: Path) -> None:
    """Write the listing beside the copy, whole or not at all; `through` is a directory of the same file system."""
    beside = through / "record"
    beside.write_text(json.dumps({"files": listing.as_json()}))
    beside.chmod(0o600)
    beside.replace(record_path(copy))


def read_record(copy: Path) -> Listing | None:
    """The listing beside a copy; None where there is none that can be read."""
    try:
        return listing_of_json(json.loads(record_path(copy).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_good(destination: Path, listing: Listing) -> bool:
    """Whether the copy there is of this very source and every byte of it is right."""
    record = read_record(destination)
    return record is not None and record.same_source(listing) and fault_of(destination, record) == ""
