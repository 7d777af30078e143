"""The one function that executes an invocation, and what becomes of signals while it runs.

The launcher runs in a session of its own, so that a Ctrl-C in the terminal reaches hvdtrain alone, which then decides:
first the ranks are *asked* (SIGUSR1, which every launcher forwards: hvdtrain's ranks write a checkpoint and end with
75), then the launcher gets SIGTERM, then its whole process group is killed. Whoever kills hvdtrain itself takes the
launcher along.

    execute(invocation, os.environ).status          # the job's own status: 0, 2, 75, ..., 128 + n after signal n
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hvdtrain.errors import EXIT_FAILED
from hvdtrain.launch.process import FORWARDED, STOP_REQUESTS, WATCHED, Echo, exit_status, kill_group, start
from hvdtrain.launch.spec import Invocation

LONGEST_S = 3600.0  # a wait that is ended by signals alone
LOOK_S = 1.0
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

    def give_up(self, because: str) -> None:
        """End a job that cannot go on: nobody is asked for a checkpoint."""
        self.remaining = [degree for degree in self.remaining if degree != signal.SIGUSR1]
        self._harder(f"{because}: ")

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


def say_on_stderr(text: str) -> None:
    """Print one line for the user, beside the ranks' own output."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a job ended.

    Attributes:
        status: as a shell would say it: the job's own, or 128 + n where signal n ended the launcher.
        stopped_by: the signal by which someone asked for the end; None where nobody did.
        broken: why the supervisor ended it; empty where it did not.
    """

    status: int
    stopped_by: signal.Signals | None = None
    broken: str = ""


def nothing_broken() -> str:
    """The supervisor's look at a job that nobody supervises."""
    return ""


def execute(
    invocation: Invocation,
    env: Mapping[str, str],
    *,
    grace: Grace | None = None,
    say: Callable[[str], None] = say_on_stderr,
    watch: Callable[[str], None] = lambda line: None,
    look: Callable[[], str] = nothing_broken,
) -> Ending:
    """Run `invocation` to its end.

    Must be called in the main thread: for its duration the signals are taken from whoever had them.

    Args:
        invocation: what to run.
        env: the environment that it inherits.
        grace: how long it may take to end when it is asked to.
        say: gets lines for the user.
        watch: gets each line that the launcher writes on stderr.
        look: called every second; when it returns a reason, the job is ended.

    Raises:
        LaunchError: the launcher cannot be executed.
    """
    with signals_taken(), session_folder(invocation.session_variable) as session:
        process = start(invocation.argv, invocation.environment(env) | session)
        job = Job(process, grace or Grace(), say)
        signs: list[str] = []

        def hear(line: str) -> None:
            signs.extend(sign for sign in invocation.false_success if sign in line)
            watch(line)

        assert process.stderr is not None  # start() asked for the pipe
        echo = Echo(process.stderr, 2, hear)
        broken = ""
        while process.poll() is None:
            attend(job, LOOK_S if look is not nothing_broken else LONGEST_S)
            if not broken and (broken := look()):
                job.give_up(broken)
        kill_group(process.pid)
        echo.join(ECHO_S)
    status = exit_status(process.returncode)
    if status == 0 and signs:
        say("hvdtrain: the launcher ended with 0 although it could not start the ranks: counted as a failure")
        status = EXIT_FAILED
    return Ending(status=status, stopped_by=job.asked_by, broken=broken)


@contextmanager
def session_folder(variable: str) -> Iterator[dict[str, str]]:
    """A new folder under that name for the launcher's session; whatever it left there goes with it."""
    if not variable:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="hvdtrain-session-", ignore_cleanup_errors=True) as folder:
        yield {variable: folder}


@contextmanager
def signals_taken() -> Iterator[None]:
    """For the duration, signals wait until `attend` or `pause` takes them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def attend(job: Job, longest_s: float = LONGEST_S) -> None:
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


def pause(seconds: float) -> signal.Signals | None:
    """Wait between two attempts; returns at once, with its number, when a signal asks for the end."""
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        info = signal.sigtimedwait({*STOP_REQUESTS, *FORWARDED}, left_s)
        if info:
            return signal.Signals(info.si_signo)
    return None


def sent_by_slurm(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether that process is SLURM's own on this host, which signals all processes of a job when it ends it."""
    try:
        return (proc / str(pid) / "comm").read_text().startswith("slurmstepd")
    except OSError:
        return False
