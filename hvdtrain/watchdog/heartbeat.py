"""Signs of life across hosts: each rank's watchdog sends its record to two others, on an MPI communicator of their own.

A mapped file is seen at once on its own host only; what a shared file system shows of it elsewhere may be old. So root
and a deputy on another host, which reports when root is stopped, are sent the records of all other hosts. A message is
one record, of a few hundred bytes, and a rank that does not take its messages is sent no more of them.

    heartbeat = start(hosts, controller="mpi")          # Collective; None where one host, or Gloo, needs none
    heartbeat.send(record_bytes)                        # from the watchdog's thread, like all that follows
    heartbeat.receive()
    heartbeat.merge(records)                            # with those that were read from files, on this host's clock

The communicator is the watchdog's alone, so nothing here can meet what Horovod sends or waits for. It needs an MPI that
allows several threads, which Horovod asks for; under Gloo mpi4py must not be imported, since it would start an MPI.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hvdtrain.phases import SIZE, Record, decode
from hvdtrain.topology import ROOT

_TAG = 1
_COMMUNICATORS: list[Any] = []  # one for the process, kept for the next watch: freeing it would be collective
_LOG = logging.getLogger("hvdtrain")


def readers(hosts: Sequence[str]) -> tuple[int, ...]:
    """Root, and the first rank on another host than root's, if there is one."""
    elsewhere = (rank for rank, host in enumerate(hosts) if host != hosts[ROOT])
    return (ROOT, *list(elsewhere)[:1])


class Heartbeat:
    """The records of other hosts, as they arrive at a reader.

    Args:
        communicator: of mpi4py, used by nothing else.
        rank: of this process in it.
        hosts: of all ranks.
        clock: seconds since 1970.
    """

    def __init__(
        self, communicator: Any, *, rank: int, hosts: Sequence[str], clock: Callable[[], float] = time.time
    ) -> None:
        self._communicator, self._clock = communicator, clock
        self._targets = [reader for reader in readers(hosts) if hosts[reader] != hosts[rank]]
        self._under_way: dict[int, tuple[Any, bytes]] = {}
        self._ahead: dict[int, float] = {}  # by how many seconds another rank's clock is ahead of this one
        self._received: dict[int, Record] = {}

    def send(self, record: bytes) -> None:
        """Send this rank's record to the readers on other hosts, but not to one that has not taken the last one."""
        for target in self._targets:
            before = self._under_way.get(target)
            if before is None or before[0].Test():
                request = self._communicator.Isend([record, SIZE, _byte_type()], dest=target, tag=_TAG)
                self._under_way[target] = request, record  # the bytes must live as long as the message is under way

    def receive(self) -> None:
        """Take what has arrived; never waits."""
        from mpi4py import MPI

        status, buffer = MPI.Status(), bytearray(SIZE)
        while self._communicator.Iprobe(source=MPI.ANY_SOURCE, tag=_TAG, status=status):
            self._communicator.Recv([buffer, SIZE, MPI.BYTE], source=status.Get_source(), tag=_TAG)
            record = decode(bytes(buffer))
            self._ahead[record.rank] = record.beat - self._clock()
            self._received[record.rank] = record

    def merge(self, records: Mapping[int, Record]) -> dict[int, Record]:
        """Records from files and those that arrived, the later of the two, all with times on this host's clock."""
        latest = dict(records)
        for rank, record in self._received.items():
            other = latest.get(rank, record)
            latest[rank] = replace(max(record, other, key=_moved), beat=max(record.beat, other.beat))
        return {rank: shifted(record, self._ahead.get(rank, 0.0)) for rank, record in latest.items()}


def _moved(record: Record) -> float:
    return record.moved


def shifted(record: Record, ahead_s: float) -> Record:
    """A record of a rank whose clock is ahead, with its times as this host would have measured them."""
    until = record.until - ahead_s if record.until else 0.0
    moved, beat = record.moved - ahead_s, record.beat - ahead_s
    return replace(record, since=record.since - ahead_s, moved=moved, beat=beat, until=until)


def _byte_type() -> Any:
    from mpi4py import MPI

    return MPI.BYTE


def start(hosts: Sequence[str], *, rank: int, controller: str) -> Heartbeat | None:
    """Collective: the heartbeat of a job on several hosts under MPI; None where there is nothing to gain or no way."""
    if controller != "mpi" or len(set(hosts)) < 2:
        return None
    from mpi4py import MPI

    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        _LOG.debug("no heartbeat between hosts: this MPI allows one thread only")
        return None
    if not _COMMUNICATORS:
        _COMMUNICATORS.append(MPI.COMM_WORLD.Dup())
    return Heartbeat(_COMMUNICATORS[0], rank=rank, hosts=hosts)
