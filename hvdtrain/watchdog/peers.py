"""The other ranks of this host as processes: when one of them ends, and how.

A pidfd cannot mean another process that was given the same number later, it becomes readable the moment the process
ends, and newer kernels tell by it how that was, although only the parent may wait for it.

    peers = Peers({1: record}, host="gpu01")
    peers.descriptors()                                # {7: 1}: when 7 is readable, rank 1 has ended
    peers.death(1)                                     # Death(signal="SIGKILL", status=None)
    peers.kill(1)
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.phases import Record, born, state_of

# From linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), first published size; the exit code since Linux 6.15.
_INFO_BYTES, _EXIT_CODE_AT, _INFO_EXIT = 64, 60, 1 << 3
_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_REAPED_S = 0.3  # how long to wait for the launcher to take note of a death, which is when the kernel tells how it was


@dataclass(frozen=True, kw_only=True)
class Death:
    """How a process ended: by a signal, with a status, or not known how."""

    signal: str = ""
    status: int | None = None

    def __str__(self) -> str:
        if self.signal:
            return f"was killed by {self.signal}"
        if self.status is not None:
            return f"left without a word, with exit status {self.status} (os._exit, or a library that ends the process)"
        return "is gone without a word: killed (SIGKILL, out of memory) or os._exit"


class Peers:
    """Ranks on this host, by their records.

    Args:
        records: by rank; those of other hosts, and those that are gone already, are left out.
        host: this one.
    """

    def __init__(self, records: Mapping[int, Record], *, host: str) -> None:
        self._pids: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}
        for rank, record in records.items():
            if record.host == host and born(record.pid) == record.born:
                self._open(rank, record.pid)

    def _open(self, rank: int, pid: int) -> None:
        try:
            self._descriptors[rank] = os.pidfd_open(pid)
        except OSError:  # it has ended since, or this kernel is older than 5.3
            return
        self._pids[rank] = pid

    def descriptors(self) -> dict[int, int]:
        """The rank that each pidfd is of."""
        return {descriptor: rank for rank, descriptor in self._descriptors.items()}

    def state(self, rank: int) -> str:
        """What the kernel says of it: `R`, `S`, `T` (stopped), ...; "" when it is gone or on another host."""
        return state_of(self._pids[rank]) if rank in self._pids else ""

    def kill(self, rank: int) -> None:
        """End it, however stuck it is; nothing where it is gone or on another host."""
        if rank in self._descriptors:
            try:
                signal.pidfd_send_signal(self._descriptors[rank], signal.SIGKILL)
            except ProcessLookupError:
                return

    def death(self, rank: int) -> Death:
        """How it ended, as far as the kernel tells; waits a moment for that."""
        deadline = time.monotonic() + _REAPED_S
        code = None
        while code is None and time.monotonic() < deadline:
            code = _exit_code(self._descriptors[rank])
            if code is None:
                code = _zombie_code(self._pids[rank])
            if code is None:
                time.sleep(0.01)
        if code is None:
            return Death()
        if code & 0x7F:
            return Death(signal=_signal_name(code & 0x7F))
        return Death(status=code >> 8)

    def close(self) -> None:
        """Let go of the descriptors."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _exit_code(descriptor: int) -> int | None:
    """The wait status of a process that was reaped; None where the kernel does not tell (yet)."""
    buffer = bytearray(_INFO_BYTES)
    struct.pack_into("Q", buffer, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, buffer)
    except OSError:
        return None
    told = struct.unpack_from("Q", buffer, 0)[0] & _INFO_EXIT
    return int(struct.unpack_from("i", buffer, _EXIT_CODE_AT)[0]) if told else None


def _zombie_code(pid: int) -> int | None:
    """The wait status of one that was not reaped yet, from proc_pid_stat(5), field 52; 0 there may mean "not told"."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[49]) or None if fields[0] == "Z" else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def oom_kills() -> int:
    """How many processes of this control group the kernel has killed for want of memory; 0 where it does not say."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        lines = Path("/sys/fs/cgroup", group, "memory.events").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split() for line in lines).get("oom_kill", "0"))


def bytes_moved() -> int:
    """How many bytes this process has read and written, by all its threads, since it began; 0 where that is hidden."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in lines)
    return int(counts.get("rchar", "0")) + int(counts.get("wchar", "0"))
