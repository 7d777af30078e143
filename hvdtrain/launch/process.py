"""A launcher as a process: started in a session of its own, listened to, and killed with all that it started here.

process = start(["mpirun", "-np", "2", "true"], os.environ)
echo = Echo(process.stderr, 2, watch=print)
kill_group(process.pid)
exit_status(process.wait())               # 128 + n after signal n
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from hvdtrain.errors import LaunchError

STOP_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
WATCHED = {*STOP_REQUESTS, *FORWARDED, signal.SIGCHLD}
PR_SET_PDEATHSIG = 1


def kill_group(pid: int) -> None:
    """SIGKILL to every process that is still in the group of `pid`."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def start(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a launcher in a session of its own, with the signals unblocked, bound to the life of this process.

    Raises:
        LaunchError: it cannot be executed.
    """
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    try:
        return subprocess.Popen(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=prepare,
        )
    except OSError as error:
        raise LaunchError(f"execute {argv[0]}", found=str(error), remedy="hvdtrain launch --dry-run ...") from error


class Echo(threading.Thread):
    """Copies what a launcher says on stderr, byte by byte as it comes, and keeps an eye on its lines.

    Args:
        source: the launcher's stderr.
        sink: the descriptor that gets everything.
        watch: called with each whole line.
    """

    def __init__(self, source: IO[bytes], sink: int, watch: Callable[[str], None]) -> None:
        super().__init__(name="hvdtrain-echo", daemon=True)
        self._source, self._sink, self._watch = source, sink, watch
        self.start()

    def run(self) -> None:
        """Copy until the launcher and all that hold its stderr are gone."""
        rest = b""
        with self._source:
            while data := os.read(self._source.fileno(), 65536):
                write_all(self._sink, data)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._watch(line.decode(errors="replace"))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; a reader that went away is no reason to stop the job."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BrokenPipeError:
            return


def exit_status(returncode: int) -> int:
    """What a shell would report for the return code of `subprocess`."""
    return returncode if returncode >= 0 else 128 - returncode
