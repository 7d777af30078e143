"""Where all threads of this process are, as text; also when C code does not let go of the interpreter.

with Stacks(run_dir / "logs/stacks-rank-0001.txt") as stacks:
    stacks.arm(240.0)              # written by a C thread when it is not armed again within so many seconds
    stacks.write()                 # now
read_stacks(path)                  # what was written, or ""
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

_WAITING_CODE = ("/horovod/", "/hvdtrain/sync/", "/hvdtrain/collectives.py", "/mpi4py/")


class Stacks:
    """The file of one rank, empty at first."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def arm(self, timeout_s: float) -> None:
        """Have the stacks written if nobody arms again within `timeout_s`; needs no interpreter."""
        faulthandler.dump_traceback_later(timeout_s, file=self._file)

    def write(self) -> None:
        """Write where all threads are now; the main thread first, the caller's own left out."""
        self._file.write(current_stacks())
        self._file.flush()

    def close(self) -> None:
        """Disarm."""
        faulthandler.cancel_dump_traceback_later()
        self._file.close()


def current_stacks() -> str:
    """The Python stacks of all threads but this one, the main thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != own}
    parts = []
    for ident in sorted(frames, key=lambda ident: ident != main):
        lines = "".join(traceback.format_stack(frames[ident])).rstrip()
        parts.append(f"{names.get(ident, 'a thread that Python did not start')} (most recent call last):\n{lines}\n")
    return "\n".join(parts)


def main_thread_waits() -> bool:
    """Whether the main thread is in code that waits for other ranks, by the file of its innermost Python frame."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and any(part in frame.f_code.co_filename for part in _WAITING_CODE)


def read_stacks(path: Path, most_bytes: int = 20_000) -> str:
    """The beginning of what a rank wrote; "" where it wrote nothing."""
    try:
        with path.open() as file:
            return file.read(most_bytes).rstrip()
    except OSError:
        return ""
