"""The one function that executes an invocation, and what becomes of signals while it runs.

The launcher runs in a session of its own, so that a Ctrl-C in the terminal reaches hvdtrain alone, which then decides:
first the ranks are *asked* (SIGUSR1, which every launcher forwards: hvdtrain's ranks write a checkpoint and end with
75), then the launcher gets SIGTERM, then its whole process group is killed. Whoever kills hvdtrain itself takes the
launcher along.

    status = execute(invocation, os.environ)            # the job's own status: 0, 2, 75, ..., 128 + n after signal n
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hvdtrain.errors import EXIT_FAILED, LaunchError
from hvdtrain.launch.spec import Invocation

STOP_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
WATCHED = {*STOP_REQUESTS, *FORWARDED, signal.SIGCHLD}
PR_SET_PDEATHSIG = 1
ECHO_S = 2.0  # how long what the launcher left behind may hold on to its stderr


@dataclass(frozen=True, kw_only=True)
class Grace:
    """How long a job that was asked to stop may take, in seconds.

    Attributes:
        checkpoint_s: from the request (SIGUSR1) to SIGTERM: time to finish a step and write a checkpoint.
        end_s: from SIGTERM to SIGKILL.
    """

    checkpoint_s: float = 60.0
    end_s: float = 5.0


@dataclass
class Job:
    """A launcher that runs, and how far its end has been asked for."""

    process: subprocess.Popen[bytes]
    grace: Grace
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    kill: Callable[[int], None] = lambda pid: kill_group(pid)
    asked_by: signal.Signals | None = None
    deadline: float | None = None
    remaining: list[signal.Signals] = field(default_factory=lambda: [signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL])

    def request_stop(self, by: signal.Signals) -> None:
        """Ask the job to end, one degree harder than the last time."""
        self.asked_by = self.asked_by or by
        self._harder(f"{by.name}: ")

    def await_end(self, by: signal.Signals) -> None:
        """Give the ranks, who were asked by someone else, the time to end that they have after a request of ours."""
        if signal.SIGUSR1 not in self.remaining:
            return
        self.asked_by = by
        self.remaining.remove(signal.SIGUSR1)
        self.deadline = self.clock() + self.grace.checkpoint_s
        self.say(f"hvdtrain: {by.name} from SLURM, which has sent it to the ranks too: waiting for their checkpoint")

    def tick(self) -> None:
        """Go one degree harder where the time is over."""
        if self.deadline is not None and self.clock() >= self.deadline:
            self._harder("still running: ")

    def _harder(self, because: str) -> None:
        if not self.remaining:
            return
        degree = self.remaining.pop(0)
        texts = {
            signal.SIGUSR1: "asking the ranks to write a checkpoint and stop (again to end them at once)",
            signal.SIGTERM: "ending the ranks",
            signal.SIGKILL: "killing the launcher and everything it started here",
        }
        self.say(f"hvdtrain: {because}{texts[degree]}")
        waits = {signal.SIGUSR1: self.grace.checkpoint_s, signal.SIGTERM: self.grace.end_s}
        self.deadline = self.clock() + waits[degree] if degree in waits else None
        self.send(degree)

    def send(self, number: signal.Signals) -> None:
        """Deliver one signal: SIGKILL to the whole group, anything else to the launcher, which passes it on."""
        if self.process.poll() is not None:
            return
        if number == signal.SIGKILL:
            self.kill(self.process.pid)
        else:
            self.process.send_signal(number)


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


def say_on_stderr(text: str) -> None:
    """Print one line for the user, beside the ranks' own output."""
    print(text, file=sys.stderr, flush=True)


def execute(
    invocation: Invocation,
    env: Mapping[str, str],
    *,
    grace: Grace | None = None,
    say: Callable[[str], None] = say_on_stderr,
) -> int:
    """Run `invocation` to its end and return its exit status, 128 + n where signal n ended it.

    Must be called in the main thread: for its duration the signals are taken from whoever had them.

    Raises:
        LaunchError: the launcher cannot be executed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        process = start(invocation.argv, invocation.environment(env))
        job = Job(process, grace or Grace(), say)
        signs: list[str] = []
        assert process.stderr is not None  # start() asked for the pipe
        echo = Echo(process.stderr, 2, lambda line: signs.extend(s for s in invocation.false_success if s in line))
        while process.poll() is None:
            attend(job)
        kill_group(process.pid)
        echo.join(ECHO_S)
        if process.returncode == 0 and signs:
            say("hvdtrain: the launcher ended with 0 although it could not start the ranks: counted as a failure")
            return EXIT_FAILED
        return exit_status(process.returncode)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def attend(job: Job, longest_s: float = 3600.0) -> None:
    """Wait for the next signal, or until `job` is due to be asked harder, and act on it."""
    wait_s = longest_s if job.deadline is None else min(longest_s, max(0.0, job.deadline - job.clock()))
    info = signal.sigtimedwait(WATCHED, wait_s)
    number = signal.Signals(info.si_signo) if info else None
    if number == signal.SIGTERM and info and sent_by_slurm(info.si_pid):
        job.await_end(number)
    elif number in STOP_REQUESTS:
        job.request_stop(number)
    elif number in FORWARDED:
        job.send(number)
    job.tick()


def sent_by_slurm(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether that process is SLURM's own on this host, which signals all processes of a job when it ends it."""
    try:
        return (proc / str(pid) / "comm").read_text().startswith("slurmstepd")
    except OSError:
        return False


def exit_status(returncode: int) -> int:
    """What a shell would report for the return code of `subprocess`."""
    return returncode if returncode >= 0 else 128 - returncode
