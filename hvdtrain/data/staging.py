"""Data from a shared file system to each host: one reader in the whole job, one writer on each host.

Root alone reads the source; the bytes travel by broadcast; local rank 0 of each host writes them beside the
destination, reads them back, compares size and SHA-256, and renames the copy into place. A destination is therefore
always whole; one that is good already is used again, and nothing is read but its own bytes.

    data = stage(Path("/shared/imagenet"), Path("/local/imagenet"), collectives=run.collectives)
    dataset = ImageFolder(data)
    stage(source, destination, collectives=run.collectives, progress=lambda done, total: bar.update(done, total))

A kill leaves at most a hidden directory beside the destination, which the next call removes. Two jobs that stage the
same source at once both copy it; the first to finish publishes, the second finds a good copy and drops its own. The
destination must not be changed by hand, nor given another source while a job uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from hvdtrain.collectives import Collectives
from hvdtrain.data.copies import Listing, is_good, list_files, listing_of_json
from hvdtrain.data.transfer import Reader, Writer, writing
from hvdtrain.errors import StagingError

Progress = Callable[[int, int], None]
CHUNK_BYTES = 16 * 2**20
_AGREE_EVERY = 32  # chunks between two agreements that everybody can go on: 512 MiB


def stage(
    source: Path,
    destination: Path,
    *,
    collectives: Collectives,
    progress: Progress | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Path:
    """Collective: have a verified copy of `source` at `destination` on every host, and give its path.

    Args:
        source: a file or directory that root can read; others need not see it.
        destination: where the copy shall be, on a file system of each host.
        collectives: of the job.
        progress: called with (bytes copied, bytes in all) as the copy goes on, on each rank that gives it.
        chunk_bytes: bytes per broadcast; the same on all ranks.

    Raises:
        StagingError: on every rank: root cannot read the source, a host cannot hold it, or a copy came out wrong.
    """
    source, destination = Path(source), Path(destination).absolute()
    listing = listing_of_json(collectives.on_root(lambda: list_files(source).as_json()))
    good = _on_writers(collectives, lambda: is_good(destination, listing))
    if all(good):
        return destination
    with ExitStack() as stack:
        writer = None

        def begin() -> bool:
            nonlocal writer
            if not good[collectives.topology.rank]:  # hosts that have a good copy only listen
                writer = stack.enter_context(writing(destination, listing))
            return True

        _on_writers(collectives, begin)
        reader = Reader(source, listing) if collectives.topology.is_root else None
        if reader is not None:
            stack.callback(reader.close)
        _copy(listing, reader, writer, collectives, progress, chunk_bytes)
    return destination


def _on_writers(collectives: Collectives, function: Callable[[], bool]) -> list[bool]:
    """Collective: run `function` on the writer of each host; all values, or the first fault on every rank."""
    value, fault = True, ""
    if collectives.topology.local_rank == 0:
        try:
            value = function()
        except (OSError, StagingError) as error:
            fault = str(error)
    return _agree(collectives, value, fault)


def _agree(collectives: Collectives, value: bool, fault: str) -> list[bool]:
    """Collective: every rank's value; where one has a fault, that fault on every rank."""
    replies = collectives.gather_json([value, fault], "hvdtrain.stage.agree")
    for rank, (_, told) in enumerate(replies):
        if told:
            raise StagingError("stage data to every host", found=f"on rank {rank}: {told}", agreed=True)
    return [bool(reply[0]) for reply in replies]


def _copy(
    listing: Listing,
    reader: Reader | None,
    writer: Writer | None,
    collectives: Collectives,
    progress: Progress | None,
    chunk_bytes: int,
) -> None:
    """Collective: read, broadcast, write, verify and publish."""
    total = listing.total_bytes
    for number, start in enumerate(range(0, total, chunk_bytes), start=1):
        length = min(chunk_bytes, total - start)
        chunk = reader.read(length) if reader else torch.zeros(length, dtype=torch.uint8)
        chunk = collectives.broadcast(chunk, "hvdtrain.stage.chunk")
        if writer is not None:
            writer.write(chunk)
        if progress is not None:
            progress(start + length, total)
        if number % _AGREE_EVERY == 0:
            _agree(collectives, True, _faults(reader, writer))
    _agree(collectives, True, _faults(reader, writer))
    hashed = listing_of_json(collectives.on_root(lambda: reader.finish().as_json() if reader else None))
    _on_writers(collectives, lambda: writer is None or writer.publish(hashed))


def _faults(reader: Reader | None, writer: Writer | None) -> str:
    return (reader.fault if reader else "") or (writer.fault if writer else "")
