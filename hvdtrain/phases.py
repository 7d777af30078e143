"""What a rank is doing, in a small record that other processes can read and that survives the rank.

The record is a row of 64-bit words, in memory at first and in a mapped file of the run directory from `keep_in` on. A
change is a handful of stores, without locks and without system calls, so it may happen several times in a step. Time
is summed up for each phase; time in which a rank waits for others counts as `exchange`, whatever the phase.

    phases = Phases(rank=0, host="gpu01")
    phases.enter("forward")                            # until the next call
    with phases.during("save"):                        # and back again
        with phases.waiting():                         # still in phase save, but the time is the others'
            ...
    phases.step = 17
    phases.take_times()                                # seconds by phase since the last call, in the order of PHASES
    read_record(Path("watch/rank-0001"))               # Record(rank=1, pid=4711, step=17, phase="exchange", ...)
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

PhaseName = Literal["user", "data", "forward", "backward", "exchange", "update", "evaluate", "save"]
PHASES: tuple[PhaseName, ...] = ("user", "data", "forward", "backward", "exchange", "update", "evaluate", "save")
_INDEX = {name: index for index, name in enumerate(PHASES)}
_WAITING = _INDEX["exchange"]  # whose time it is while a rank waits

_VERSION, _RANK, _PID, _BORN, _ENDED, _STEP, _PHASE, _SINCE, _WAITS, _BEAT, _MOVED, _UNTIL, _OFFSET, _BUSY = range(14)
_TIMES = 16  # the first of one word for each phase
_NO_TIMES = memoryview(bytes(8 * len(PHASES))).cast("q")
_TEXTS = 8 * 32  # where the bytes of host and section begin
_TEXT_BYTES = 128
SIZE = _TEXTS + 2 * _TEXT_BYTES
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """One look at a rank's record; times are seconds since 1970 on the clock of the rank's host.

    Attributes:
        rank: whose it is.
        host: where it runs.
        pid: its process there.
        born: when that process was started, in the kernel's ticks; tells it from a later one with the same number.
        ended: it left in order.
        step: updates that it made.
        phase: what it does.
        since: since when.
        waits: it waits for other ranks.
        busy: its watchdog saw the main thread at something else than waiting, whatever the phase.
        beat: when its watchdog was last alive; 0 where none ran yet.
        moved: when it last made progress: entered a phase, or heard from the others.
        until: until when long work was declared; 0 for none.
        section: the name of that work.
    """

    rank: int
    host: str
    pid: int
    born: int
    ended: bool
    step: int
    phase: PhaseName
    since: float
    waits: bool
    busy: bool
    beat: float
    moved: float
    until: float
    section: str


class Phases:
    """The record of this rank; see the module.

    Args:
        rank: of this process.
        host: of this process.
        clock: nanoseconds that only move forward.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        host: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._map: mmap.mmap | None = None
        self._bytes = memoryview(bytearray(SIZE))
        self._words = self._bytes.cast("q")
        self._bucket, self._last = _TIMES, clock()
        words = self._words
        words[_VERSION], words[_RANK], words[_PID], words[_BORN] = _FORMAT, rank, os.getpid(), born(os.getpid())
        words[_OFFSET] = int(wall() * 1e9) - self._last
        words[_SINCE] = words[_MOVED] = self._last
        self._write_text(0, host)

    def keep_in(self, path: Path) -> None:
        """Go on in a file, which another process may read while this one runs and after it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, SIZE)
            mapped = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        mapped[:] = bytes(self._bytes)
        self._map, self._bytes = mapped, memoryview(mapped)
        self._words = self._bytes.cast("q")
        self._words[_ENDED] = 0

    def flush(self) -> None:
        """Let readers on other hosts see the record, where the run directory is on a shared file system."""
        if self._map is not None:
            self._map.flush()

    # ---- what the rank does

    @property
    def phase(self) -> PhaseName:
        """What this rank does now."""
        return PHASES[self._words[_PHASE]]

    @property
    def step(self) -> int:
        """Updates made so far."""
        return self._words[_STEP]

    @step.setter
    def step(self, value: int) -> None:
        self._words[_STEP] = value

    def enter(self, phase: PhaseName) -> None:
        """This rank does something else from now on."""
        words, index, now = self._words, _INDEX[phase], self._clock()
        words[self._bucket] += now - self._last
        self._last, self._bucket = now, _TIMES + index
        words[_PHASE] = index
        words[_SINCE] = now

    def during(self, phase: PhaseName) -> _During:
        """A phase inside another one, which goes on afterwards; an exception leaves the record where it was raised."""
        return _During(self, phase)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """This rank waits for others: its phase stays, its time counts as `exchange`."""
        words, now = self._words, self._clock()
        words[self._bucket] += now - self._last
        bucket, self._last, self._bucket = self._bucket, now, _TIMES + _WAITING
        words[_WAITS] = now
        try:
            yield
        finally:
            words, now = self._words, self._clock()
            words[self._bucket] += now - self._last
            self._last, self._bucket = now, bucket
            words[_WAITS], words[_MOVED] = 0, now

    @contextmanager
    def section(self, name: str, timeout_s: float) -> Iterator[None]:
        """Long work that is no reason for an alarm before `timeout_s` is over."""
        self._write_text(1, name)
        self._words[_UNTIL] = self._clock() + int(timeout_s * 1e9)
        try:
            yield
        finally:
            self._words[_UNTIL], self._words[_MOVED] = 0, self._clock()

    def take_times(self) -> list[float]:
        """Seconds in each of PHASES since the last call."""
        words, now = self._words, self._clock()
        words[self._bucket] += now - self._last
        self._last = now
        times = words[_TIMES : _TIMES + len(PHASES)]
        seconds = [spent / 1e9 for spent in times.tolist()]
        times[:] = _NO_TIMES
        return seconds

    # ---- what its watchdog says of it

    def beat(self) -> None:
        """Say that this process is alive and its interpreter runs."""
        self._words[_BEAT] = self._clock()

    def advance(self) -> None:
        """Say that this rank makes progress although its phase stays."""
        self._words[_MOVED] = self._clock()

    def seen_busy(self, busy: bool) -> None:
        """Say whether the main thread does something else than waiting for others."""
        self._words[_BUSY] = busy

    def end(self) -> None:
        """Say that this rank leaves in order, so that its absence alarms nobody."""
        self._words[_ENDED] = 1

    def image(self) -> bytes:
        """The bytes of this rank's record, for `decode`."""
        return bytes(self._bytes)

    def look(self) -> Record:
        """This rank's own record, as others see it."""
        return decode(self.image())

    def _write_text(self, slot: int, text: str) -> None:
        start = _TEXTS + slot * _TEXT_BYTES
        self._bytes[start : start + _TEXT_BYTES] = text.encode()[: _TEXT_BYTES - 1].ljust(_TEXT_BYTES, b"\0")


class _During:
    """The context of `Phases.during`; a class, because it is entered twice in each step."""

    __slots__ = ("_before", "_phase", "_phases")

    def __init__(self, phases: Phases, phase: PhaseName) -> None:
        self._phases, self._phase, self._before = phases, phase, phases.phase

    def __enter__(self) -> None:
        self._phases.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._phases.enter(self._before)


def decode(data: bytes) -> Record:
    """Read the bytes of a record.

    Raises:
        ValueError: they are not one.
    """
    if len(data) != SIZE:
        raise ValueError(f"a record has {SIZE} bytes, not {len(data)}")
    words = memoryview(data).cast("q")
    if words[_VERSION] != _FORMAT or not 0 <= words[_PHASE] < len(PHASES):
        raise ValueError("not a record of this version")

    def text(slot: int) -> str:
        start = _TEXTS + slot * _TEXT_BYTES
        return data[start : start + _TEXT_BYTES].rstrip(b"\0").decode(errors="replace")

    def time_of(word: int) -> float:
        return (words[word] + words[_OFFSET]) / 1e9 if words[word] else 0.0

    return Record(
        rank=words[_RANK],
        host=text(0),
        pid=words[_PID],
        born=words[_BORN],
        ended=bool(words[_ENDED]),
        step=words[_STEP],
        phase=PHASES[words[_PHASE]],
        since=time_of(_SINCE),
        waits=bool(words[_WAITS]),
        busy=bool(words[_BUSY]),
        beat=time_of(_BEAT),
        moved=max(time_of(_SINCE), time_of(_MOVED)),
        until=time_of(_UNTIL),
        section=text(1) if words[_UNTIL] else "",
    )


def read_record(path: Path) -> Record | None:
    """The record in a file, read afresh; None where there is none (yet)."""
    try:
        return decode(path.read_bytes())
    except (OSError, ValueError):
        return None


def born(pid: int) -> int:
    """When a process of this host was started, in ticks since boot (proc_pid_stat(5), field 22); 0 when it is gone."""
    return int(_stat(pid).get("born", "0"))


def state_of(pid: int) -> str:
    """What the kernel says of a process of this host: `R` runs, `S` sleeps, `T` is stopped, `Z` is dead; "" is gone."""
    return _stat(pid).get("state", "")


def _stat(pid: int) -> dict[str, str]:
    try:
        rest = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return {}
    return {"state": rest[0], "born": rest[19]}
