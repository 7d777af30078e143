"""The two ends of a staging: a reader that turns files into one stream of bytes, and a writer that makes them again.

Neither raises while the bytes flow, because the others would wait for it: a fault is kept in `fault`, the reader goes
on with zeros and the writer only listens, until all ranks have agreed to end.

    reader = Reader(source, listing)                        # on root
    with writing(destination, listing) as writer:           # on one rank of each host
        writer.write(reader.read(length))                   # as often as it takes; lengths are the caller's
        writer.publish(reader.finish())                     # verified against the hashes, renamed into place
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from hvdtrain.data.copies import Listing, fault_of, is_good, list_files, write_record
from hvdtrain.errors import StagingError


class Reader:
    """The source as one stream of bytes. After a fault it goes on with zeros, until all ranks have agreed to end."""

    def __init__(self, source: Path, listing: Listing) -> None:
        self._source = source
        self._listing = listing
        self._hashes = [hashlib.sha256() for _ in listing.entries]
        self._pieces = _pieces(listing)
        self._file: IO[bytes] | None = None
        self._open = -1
        self.fault = ""

    def read(self, length: int) -> Tensor:
        """The next bytes, as uint8 of shape (length,)."""
        data = bytearray(length)
        if not self.fault:
            try:
                self._fill(memoryview(data))
            except (OSError, StagingError) as error:
                self.fault = str(error)
        return torch.frombuffer(data, dtype=torch.uint8)

    def _fill(self, view: memoryview) -> None:
        for number, offset, part in self._pieces(len(view)):
            if number != self._open:
                self.close()
                self._file, self._open = self._listing.entries[number].below(self._source).open("rb"), number
            assert self._file is not None
            piece = view[part.start : part.stop]
            got = self._file.readinto(piece)  # type: ignore[attr-defined]
            if got != len(piece):
                raise StagingError(
                    f"read {self._file.name}", found=f"its end at byte {offset + got}: it became shorter meanwhile"
                )
            self._hashes[number].update(piece)

    def finish(self) -> Listing:
        """The listing with hashes.

        Raises:
            StagingError: the source was changed while it was read.
        """
        if not list_files(self._source).same_source(self._listing):
            raise StagingError(f"stage {self._source}", found="it was changed while it was read", remedy="stage again")
        pairs = zip(self._listing.entries, self._hashes, strict=True)
        return Listing(tuple(replace(entry, sha256=digest.hexdigest()) for entry, digest in pairs))

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _pieces(listing: Listing) -> Callable[[int], Iterator[tuple[int, int, range]]]:
    """A function that says where the next bytes of the stream belong: (file number, offset in it, part of them)."""
    number = offset = 0

    def take(length: int) -> Iterator[tuple[int, int, range]]:
        nonlocal number, offset
        at = 0
        while at < length:
            left = listing.entries[number].length - offset
            if left == 0:
                number, offset = number + 1, 0
                continue
            part = range(at, min(length, at + left))
            yield number, offset, part
            at, offset = part.stop, offset + len(part)

    return take


class Writer:
    """A copy in the making, in a hidden directory beside the destination. After a fault it only listens."""

    def __init__(self, destination: Path, directory: Path, listing: Listing) -> None:
        self._destination = destination
        self._copy = directory / "copy"
        self._pieces = _pieces(listing)
        self._file: IO[bytes] | None = None
        self._open = -1
        self._listing = listing
        self.fault = ""
        self._prepare()

    def _prepare(self) -> None:
        """Make the directories and the empty files, after looking whether all will fit."""
        free = shutil.disk_usage(self._copy.parent).free
        if free < self._listing.total_bytes:
            raise StagingError(
                f"stage {self._listing.total_bytes} bytes to {self._destination}", found=f"{free} bytes are free there"
            )
        if not self._listing.is_file:
            self._copy.mkdir(mode=0o700)
        for entry in self._listing.entries:
            path = entry.below(self._copy)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def write(self, chunk: Tensor) -> None:
        """Write the next bytes of the stream."""
        if self.fault:
            return
        try:
            data = chunk.numpy().data
            for number, _, part in self._pieces(len(data)):
                if number != self._open:
                    self.close()
                    self._file, self._open = self._listing.entries[number].below(self._copy).open("r+b"), number
                assert self._file is not None
                self._file.write(data[part.start : part.stop])
        except OSError as error:
            self.fault = str(error)

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def publish(self, hashed: Listing) -> bool:
        """Verify the copy and move it to the destination; drop it where another job was quicker.

        Raises:
            StagingError: what was written is not what root read.
        """
        self.close()
        fault = fault_of(self._copy, hashed)
        if fault:
            raise StagingError(f"stage to {self._destination}", found=fault, remedy="check the disk of this host")
        with _locked(self._destination):
            if not is_good(self._destination, self._listing):
                if os.path.lexists(self._destination):
                    self._destination.rename(self._copy.parent / "old")
                self._copy.rename(self._destination)
                write_record(self._destination, hashed, through=self._copy.parent)
        return True


@contextmanager
def _locked(destination: Path) -> Iterator[None]:
    """Only one process of this host at a time; the kernel frees it when the process dies."""
    descriptor = os.open(destination.parent / f".{destination.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writing(destination: Path, listing: Listing) -> Iterator[Writer]:
    """A writer whose hidden directory is removed at the end; those that kills left are removed first."""
    destination.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    prefix = f".{destination.name}.staging-"
    with _locked(destination):
        for left in destination.parent.glob(f"{prefix}*"):
            _remove_if_left(left)
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=destination.parent))
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # says that somebody works here, for as long as the process lives
    writer: Writer | None = None
    try:
        writer = Writer(destination, directory, listing)
        yield writer
    finally:
        if writer is not None:
            writer.close()
        shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def _remove_if_left(directory: Path) -> None:
    """Remove a hidden directory whose process is gone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(descriptor)
