"""One save in flight: a thread that publishes a snapshot while the steps go on, and what became of it.

    writer = Writer(store.publish, clock=time.monotonic)
    writer.start(snapshot)             # returns at once
    writer.poll()                      # None while it runs, and again once its outcome was taken
    writer.wait()                      # Outcome(step=40, seconds=1.2, fault="", tolerable=True), or None if nothing ran

The thread is no daemon: a process that ends in order waits for it. It hashes and writes, both outside the
interpreter's lock.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.checkpoint.format import Snapshot
from hvdtrain.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one save.

    Attributes:
        step: the step that was saved, or not.
        save_s: how long it took, in seconds.
        fault: what went wrong; empty when nothing did.
        tolerable: whether training can go on without this checkpoint: a full disk, not a fault of the program.
    """

    step: int
    save_s: float
    fault: str = ""
    tolerable: bool = True


class Writer:
    """Publishes one snapshot at a time, in a thread or, if not asynchronous, in `start` itself.

    Args:
        publish: what writes a snapshot; it raises OSError or CheckpointError when it could not.
        clock: seconds that only move forward.
        asynchronous: whether a thread does it.
    """

    def __init__(
        self, publish: Callable[[Snapshot], object], *, clock: Callable[[], float], asynchronous: bool = True
    ) -> None:
        self._publish, self._clock, self._asynchronous = publish, clock, asynchronous
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()  # not a join: Python 3.11 takes a thread for ended whose join was interrupted
        self._outcome: Outcome | None = None

    def start(self, snapshot: Snapshot) -> None:
        """Begin to publish; the outcome of the one before must have been taken."""
        assert self._thread is None, "one save in flight"
        assert self._outcome is None, "an outcome that nobody took"
        if not self._asynchronous:
            self._run(snapshot)
            return
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, args=(snapshot,), name=f"hvdtrain-save-{snapshot.step}")
        self._thread.start()

    def _run(self, snapshot: Snapshot) -> None:
        began = self._clock()
        fault, tolerable = "", True
        try:
            self._publish(snapshot)
        except (OSError, CheckpointError) as error:
            fault = error.found if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        except Exception as error:  # whatever it is, every rank must hear of it
            fault, tolerable = "".join(traceback.format_exception(error)), False
        self._outcome = Outcome(step=snapshot.step, save_s=self._clock() - began, fault=fault, tolerable=tolerable)
        self._ended.set()

    @property
    def failed(self) -> bool:
        """Whether a save has ended badly and its outcome was not taken yet."""
        outcome = self._outcome
        return outcome is not None and outcome.fault != ""

    def poll(self) -> Outcome | None:
        """Take the outcome of a save that has ended; None if there is none."""
        return self.wait() if self._outcome is not None else None

    def wait(self) -> Outcome | None:
        """Wait for the save in flight and take its outcome; None if there was none."""
        if self._thread is not None and self._thread.ident is not None:  # else it could not be started
            self._ended.wait()
        self._thread = None
        outcome, self._outcome = self._outcome, None
        return outcome
