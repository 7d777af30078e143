"""The first failure of a job: one file in the run directory by whoever is first, and the last words of the log.

Whatever happens on one rank makes the others fail too, so only the first failure explains anything. `failure.json` is
created exclusively; who comes second says nothing aloud and ends. A rank that fails only because Horovod told it that
others are gone gives the true first one a few seconds to be recorded.

    failures = Failures(rank=1, host="gpu01", phases=phases, log=log)
    failures.directory = Path("runs/digits")
    failures.caught(error)                             # True: it was the first, and is in the log now
    read(Path("runs/digits"))                          # Failure(rank=1, step=17, phase="forward", ...)
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hvdtrain.errors import EXIT_FAILED, HvdtrainError
from hvdtrain.phases import Phases
from hvdtrain.topology import ROOT

FILE = "failure.json"
ECHO_S = 5.0  # how long a rank that only heard of a failure waits for its record
SETTLE_S = 0.3  # how long the last words wait for the others' lines on their way through the launcher

Kind = Literal["exception", "exit", "killed", "stall"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong first.

    Attributes:
        rank: whose fault it is.
        host: where it runs.
        step: updates it had made.
        phase: what it did; see `hvdtrain.phases`.
        kind: an exception, an exit before the end, a death by signal or without a word, or no progress.
        reason: one line.
        signal: by which it died, such as ``SIGKILL``; empty where none is known.
        traceback: where it was, as text; empty where nobody could know.
        told_by: the rank that wrote this.
        time: ISO 8601, UTC.
        waiting: the ranks that waited for it, for a stall.
    """

    rank: int
    host: str
    step: int
    phase: str
    kind: Kind
    reason: str
    signal: str = ""
    traceback: str = ""
    told_by: int = ROOT
    time: str = ""
    waiting: tuple[int, ...] = ()

    def __str__(self) -> str:
        head = f"rank {self.rank} on {self.host} failed at step {self.step} in {self.phase} and ends the job"
        return f"{head}: {self.reason}\n{self.traceback}".rstrip()


def publish(directory: Path, failure: Failure) -> bool:
    """Create `failure.json` whole, unless there is one; whether this was the first.

    Nothing waits for the disk: a launcher that saw a rank die ends the others within a fraction of a second.
    """
    beside = directory / f".{FILE}.{failure.told_by}.{threading.get_ident()}.partial"
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(failure), file, indent=2)
        file.write("\n")
    try:
        os.link(beside, directory / FILE)  # link(2) is exclusive, on NFS too
    except FileExistsError:
        return False
    finally:
        beside.unlink()
    return True


def read(directory: Path) -> Failure | None:
    """The first failure, if there was one."""
    try:
        fields = json.loads((directory / FILE).read_text())
    except FileNotFoundError:
        return None
    return Failure(**{**fields, "waiting": tuple(fields["waiting"])})


def set_aside(directory: Path) -> None:
    """Root only: keep the failure of an earlier attempt under the time when it happened."""
    path = directory / FILE
    if path.exists():
        stamp = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%SZ")
        path.rename(directory / f"failure-{stamp}.json")


def is_echo(error: BaseException) -> bool:
    """Whether an exception only says that another rank is gone."""
    return type(error).__name__ == "HorovodInternalError"


@dataclass(kw_only=True)
class Failures:
    """What this rank does about failures.

    Attributes:
        rank: of this process.
        host: of this process.
        phases: where it is.
        log: for the last words.
        directory: the run directory; None while there is none, and nothing is recorded.
        clock: seconds that only move forward.
        sleep: waits for so many seconds.
    """

    rank: int = ROOT
    host: str = ""
    phases: Phases = field(default_factory=Phases)
    log: logging.Logger
    directory: Path | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] = time.sleep
    _hooked: list[Any] = field(default_factory=list, repr=False)

    def caught(self, error: BaseException, *, thread: str = "", aloud: bool = True) -> bool:
        """Record an exception that only this rank has, and say it aloud if it is the first failure."""
        if is_echo(error) and self._known_within(ECHO_S):
            self.log.debug("this rank ends because another one failed: %s", error)
            return False
        text = "".join(traceback.format_exception(error)).rstrip()
        leaving = isinstance(error, SystemExit)
        reason = f"sys.exit({error.code!r}) before the end" if isinstance(error, SystemExit) else _line(error)
        where = f" (in the thread {thread})" if thread else ""
        return self.tell(self._own("exit" if leaving else "exception", reason + where, text), aloud=aloud)

    def agreed(self, error: HvdtrainError) -> None:
        """Record an error that all ranks raise alike, by the rank whose fault it is, or else by root."""
        if error.exit_status == EXIT_FAILED and self.rank == (ROOT if error.rank is None else error.rank):
            self.tell(self._own("exception", _line(error), str(error), phase=error.phase))

    def tell(self, failure: Failure, *, aloud: bool = True, settle_s: float = SETTLE_S) -> bool:
        """Record a failure, and say it aloud if it is the first one, after what the others had to say."""
        try:
            first = self.directory is None or publish(self.directory, failure)
        except OSError as error:
            self.log.error("no %s in %s: %s", FILE, self.directory, error)
            first = True
        if first and aloud:
            self.sleep(settle_s)
            self.log.critical("%s", failure)
        elif not first:
            self.log.debug("not the first failure: %s", failure)
        return first

    def known(self) -> Failure | None:
        """The first failure, if one is recorded."""
        return None if self.directory is None else read(self.directory)

    def _known_within(self, timeout_s: float) -> bool:
        deadline = self.clock() + timeout_s
        while self.directory is not None and self.clock() < deadline:
            if self.known():
                return True
            self.sleep(0.05)
        return False

    def _own(self, kind: Kind, reason: str, text: str, phase: str = "") -> Failure:
        return Failure(
            rank=self.rank,
            host=self.host,
            step=self.phases.step,
            phase=phase or self.phases.phase,
            kind=kind,
            reason=reason,
            traceback=text,
            told_by=self.rank,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    def hook_threads(self, abort: Callable[[], Any]) -> None:
        """From now on an exception that ends any thread of this process ends the job."""
        self._hooked.append(threading.excepthook)

        def failed(arguments: threading.ExceptHookArgs) -> None:
            error = arguments.exc_value
            if error is not None and not isinstance(error, SystemExit):
                self.caught(error, thread=arguments.thread.name if arguments.thread else "unknown")
                abort()

        threading.excepthook = failed

    def unhook_threads(self) -> None:
        """Put back what was there before."""
        if self._hooked:
            threading.excepthook = self._hooked.pop()


def _line(error: BaseException) -> str:
    text = error.found if isinstance(error, HvdtrainError) else str(error)
    return ": ".join([type(error).__name__, *text.splitlines()[:1]])
