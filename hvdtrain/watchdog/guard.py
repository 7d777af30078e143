"""The thread in each rank that watches this rank and the others, while the main thread computes or waits in Horovod.

It never communicates with the thread it watches but through the record; it needs the interpreter for microseconds per
second, and what it says of a rank is still there when that rank is not.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdtrain.failure import Failures
from hvdtrain.phases import Phases, Record, read_record
from hvdtrain.watchdog.heartbeat import Heartbeat
from hvdtrain.watchdog.peers import Peers, bytes_moved, oom_kills
from hvdtrain.watchdog.reports import died, record_file, stack_file, stuck
from hvdtrain.watchdog.stacks import Stacks, main_thread_waits
from hvdtrain.watchdog.stall import Condition, condition, stalled

_OTHERS_S = 3.0  # how long a rank that knows of a failure waits to be ended with the job
_AT_FILES = ("save", "data", "user")  # phases in which reading and writing is progress
_MUCH_BYTES = 2**20  # between two looks
_TURN_S = 1.5  # between the ranks that could report a stall; the first of them does
_LOG = logging.getLogger("hvdtrain")


class Watchdog:
    """Watches until it is closed; see the package.

    Args:
        failures: of this rank, with the run directory in it.
        phases: of this rank; its record is in `records` already.
        records: the directory with one record for each rank.
        stacks: the directory for the ranks' stacks.
        size: how many ranks there are.
        stall_s: without any progress for so long, the job is aborted; None never.
        start_s: the same until the first step is done.
        usual_steps: and for so many times the usual time of a step.
        abort: ends the job; does not return.
        heartbeat: to and from other hosts; None where their records are only read from files.
        poll_s: between two looks.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        failures: Failures,
        phases: Phases,
        *,
        records: Path,
        stacks: Path,
        size: int,
        stall_s: float | None,
        start_s: float,
        usual_steps: float,
        abort: Callable[[], Any],
        heartbeat: Heartbeat | None = None,
        poll_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._failures, self._phases, self._abort, self._clock = failures, phases, abort, clock
        self._records, self._logs, self._size = records, stacks, size
        self._heartbeat = heartbeat
        self._stall_s, self._start_s, self._usual_steps = stall_s, start_s, usual_steps
        self._poll_s = poll_s or min(1.0, (stall_s or 10.0) / 10)
        self._stacks = Stacks(stack_file(stacks, failures.rank))
        others = {rank: record for rank, record in self._look_around().items() if rank != failures.rank}
        self._peers = Peers(others, host=failures.host)
        self._elsewhere = any(record.host != failures.host for record in others.values())
        self._oom_kills, self._bytes_moved = oom_kills(), bytes_moved()
        self._selector = selectors.DefaultSelector()
        for descriptor in self._peers.descriptors():
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._inbox, self._outbox = socket.socketpair()
        self._inbox.setblocking(False)
        self._outbox.setblocking(False)
        self._selector.register(self._inbox, selectors.EVENT_READ)
        self._on_signal: Callable[[int], Any] = lambda number: None
        self._wakeup: int | None = None
        self._closing, self._resting = False, False
        self.ended = threading.Event()  # it watches no more
        self._suspicions = 0
        self._usual_s, self._counted, self._started = 0.0, (clock(), phases.step), False
        self._thread = threading.Thread(target=self._watch, name="hvdtrain-watchdog", daemon=True)
        self._thread.start()

    # ---- from the main thread

    def listen(self, on_signal: Callable[[int], Any]) -> None:
        """Main thread only: from now on tell `on_signal` of each signal at once, also while Horovod has this thread."""
        self._on_signal = on_signal
        before = signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
        if self._wakeup is None:
            self._wakeup = before

    def rest(self, resting: bool = True) -> None:
        """From now on raise no alarm when nothing moves: the steps are over. Deaths are seen all the same."""
        self._resting = resting

    def close(self) -> None:
        """Main thread only: this rank leaves in order."""
        self._phases.end()
        self._closing = True
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._wakeup)
        self._outbox.send(b"\0")
        self._thread.join()
        self._selector.close()
        self._stacks.close()
        self._peers.close()
        self._inbox.close()
        self._outbox.close()

    # ---- the thread

    def _watch(self) -> None:
        while True:
            ready = [key.fd for key, _ in self._selector.select(self._poll_s)]
            if self._closing:
                return
            self._beat()
            if self._stall_s is not None:
                self._stacks.arm(0.8 * self._stall_s)  # a false alarm here is only some text in a file
            if self._inbox.fileno() in ready:
                self._hear()
            for descriptor in ready:
                self._see_end(descriptor)
            self._see_failure()
            self._see_stall()

    def _beat(self) -> None:
        """Say that this rank's interpreter runs: on this host, on a shared file system, and over MPI."""
        self._phases.beat()
        if self._phases.phase in _AT_FILES:
            moved = bytes_moved()
            if moved - self._bytes_moved > _MUCH_BYTES:  # a large checkpoint on a slow disk is no stall
                self._phases.advance()
            self._bytes_moved = moved
        if self._elsewhere:
            self._phases.flush()
        if self._heartbeat is not None:
            self._heartbeat.send(self._phases.image())
            self._heartbeat.receive()

    def _hear(self) -> None:
        try:
            heard = self._inbox.recv(4096)
        except BlockingIOError:
            return
        for number in filter(None, heard):
            self._on_signal(number)

    def _see_end(self, descriptor: int) -> None:
        """A process of this host has ended: in order, or as the first failure, or as an echo of it."""
        rank = self._peers.descriptors().get(descriptor)
        if rank is None:
            return
        self._selector.unregister(descriptor)
        record = read_record(record_file(self._records, rank))
        if record is None or record.ended:
            return
        if self._failures.known() is None:
            kills = oom_kills() - self._oom_kills
            failure = died(record, self._peers.death(rank), logs=self._logs, told_by=self._failures.rank, kills=kills)
            self._failures.tell(failure, settle_s=0.05)  # the launcher ends this rank in a moment
        self._leave()

    def _see_failure(self) -> None:
        """Another rank has failed; looked for only while this one stands still, to leave shared file systems alone."""
        if self._clock() - self._phases.look().moved < self._poll_s:
            return
        if self._failures.known() is not None:
            deadline = self._clock() + _OTHERS_S
            while self._clock() < deadline and not self._closing:
                time.sleep(0.05)
            if not self._closing:
                self._leave()

    def _leave(self) -> None:
        """End this rank, and those of this host that cannot end themselves."""
        for rank in self._peers.descriptors().values():
            if self._peers.state(rank) in ("t", "T"):
                self._peers.kill(rank)
        self._abort()
        self.ended.set()
        self._closing = True  # reached only where aborting is something else than the end of this process

    # ---- stalls

    def _limit_s(self) -> float:
        now, step = self._clock(), self._phases.step
        since, counted = self._counted
        if step > counted and not self._started:  # what came before the first step is no measure
            self._started, self._counted = True, (now, step)
        elif step > counted:
            took_s = (now - since) / (step - counted)
            self._usual_s = took_s if not self._usual_s else 0.8 * self._usual_s + 0.2 * took_s
            self._counted = now, step
        least_s = (self._stall_s or 0.0) if self._started else max(self._stall_s or 0.0, self._start_s)
        return max(least_s, self._usual_steps * self._usual_s)

    def _look_around(self) -> dict[int, Record]:
        found = ((rank, read_record(record_file(self._records, rank))) for rank in range(self._size))
        seen = {rank: record for rank, record in found if record is not None}
        return seen if self._heartbeat is None else self._heartbeat.merge(seen)

    def _see_stall(self) -> None:
        """Twice in a row, so that a whole host that was asleep is given time to go on."""
        limit_s = self._limit_s()
        own = self._phases.look()
        quiet = self._stall_s is not None and not self._resting and stalled({own.rank: own}, self._clock(), limit_s)
        quiet = quiet and stalled(self._look_around(), self._clock(), limit_s)
        self._suspicions = self._suspicions + 1 if quiet else 0
        if self._suspicions >= 2:
            self._report_stall()

    def _report_stall(self) -> None:
        self._stacks.write()
        self._phases.seen_busy(not main_thread_waits())
        _, conditions = self._conditions()
        awake = [rank for rank, state in sorted(conditions.items()) if state in ("works", "waits")]
        turn = awake.index(self._failures.rank) if self._failures.rank in awake else len(awake)
        deadline = self._clock() + 1.0 + turn * _TURN_S  # the others write their stacks meanwhile
        while self._clock() < deadline:
            if self._failures.known() or self._closing:
                return
            time.sleep(0.05)
            self._beat()
        if not stalled(self._look_around(), self._clock(), self._limit_s()):
            return  # it goes on after all
        records, conditions = self._conditions()
        now, told_by = self._clock(), self._failures.rank
        self._failures.tell(stuck(records, conditions, now, logs=self._logs, told_by=told_by))
        for rank, state in conditions.items():
            if state in ("stopped", "silent"):
                self._peers.kill(rank)
        self._leave()

    def _conditions(self) -> tuple[dict[int, Record], dict[int, Condition]]:
        now, records, found = self._clock(), self._look_around(), dict[int, Condition]()
        silent_s = min(5.0, 0.5 * self._limit_s())
        for rank, record in records.items():
            here = record.host == self._failures.host and rank != self._failures.rank
            found[rank] = condition(record, now, state=self._peers.state(rank) if here else None, silent_s=silent_s)
        return records, found
