"""Runs a job again until it is done: starts it, watches its hosts, ends what it left, and asks what comes after.

The first failure is what is printed last, and when this returns nothing of the job runs on any host that it reaches.

    policy = Policy(max_restarts=3, min_np=2, lost_after_s=30)
    status = supervise(spec, policy, build=choice.build, env=os.environ, watched=True)
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hvdtrain.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from hvdtrain.launch import warden
from hvdtrain.launch.aftermath import Attempt, Policy, after
from hvdtrain.launch.culprit import Culprits
from hvdtrain.launch.execution import Ending, Grace, execute, pause, say_on_stderr, signals_taken
from hvdtrain.launch.hostwatch import HostWatch, spawn_over_ssh
from hvdtrain.launch.spec import Invocation, LaunchSpec

SWEEP_S = 8.0


def supervise(
    spec: LaunchSpec,
    policy: Policy,
    *,
    build: Callable[[LaunchSpec, Mapping[str, str]], Invocation],
    env: Mapping[str, str],
    watched: bool,
    first_failure: Callable[[], tuple[str, str] | None] = lambda: None,
    grace: Grace | None = None,
    say: Callable[[str], None] = say_on_stderr,
) -> int:
    """Run the job, again where the policy says so, and return its last exit status; nothing is left on any host.

    Args:
        spec: what to start.
        policy: what the user allows.
        build: the chosen builder.
        env: the environment that the launcher inherits.
        watched: whether the hosts are reached over ssh, so that they can be watched.
        first_failure: the first failure that a rank recorded in this attempt: its host and its text.
        grace: how long the job may take to end when it is asked to.
        say: gets lines for the user.
    """
    spec = replace(spec, token=secrets.token_hex(8))
    spawn = spawn_over_ssh(spec.connect_timeout_s)
    hosts = [host for host, _ in spec.places()] if watched else []
    watch = HostWatch(hosts, spec.token, lost_after_s=policy.lost_after_s, spawn=spawn) if hosts else None
    restarts, failed_before = 0, ""
    with signals_taken():
        try:
            while True:
                attempt, last_words = _attempt(spec, policy, build, env, watch, first_failure, grace, say)
                then = after(attempt, spec, policy, restarts=restarts, failed_before=failed_before)
                if isinstance(then, str):
                    _conclude(attempt, then, last_words, say)
                    return attempt.status
                say(f"hvdtrain: {then.because}: starting again on {_described(then.spec)} in {then.wait_s:.0f} s")
                if watch:
                    watch.follow([host for host, _ in then.spec.places()])
                if (by := pause(then.wait_s)) is not None:
                    say(f"hvdtrain: {by.name}: not starting again")
                    return attempt.status
                spec, failed_before = then.spec, attempt.failed_on
                restarts += then.counted
        finally:
            if watch:
                watch.order("end", SWEEP_S)
                watch.close()


def _described(spec: LaunchSpec) -> str:
    names = [host.name for host, _ in spec.places()]
    return f"{spec.size} ranks" + (f" of {', '.join(names)}" if names else "")


@dataclass
class _Look:
    """The supervisor's look at a running job, once a second: why it cannot go on, or nothing."""

    culprits: Culprits
    watch: HostWatch | None
    say: Callable[[str], None]
    straggle_s: float
    clock: Callable[[], float] = time.monotonic
    failed_at: float | None = None
    warned: set[str] = field(default_factory=set)

    def __call__(self) -> str:
        return self._lost_hosts() or self._stragglers()

    def _lost_hosts(self) -> str:
        if self.watch is None:
            return ""
        self.watch.poll()
        for name in set(self.watch.unwatched()) - self.warned:
            self.say(f"hvdtrain: warning: {name} is not watched, as ssh has not reached it: its loss goes unnoticed")
            self.warned.add(name)
        return ", ".join(f"{name} has not answered for too long" for name in self.watch.lost())

    def _stragglers(self) -> str:
        """A launcher that says who failed, and does not end the others itself (srun)."""
        if self.culprits.first is None:
            return ""
        self.failed_at = self.failed_at or self.clock()
        late = self.clock() - self.failed_at > self.straggle_s
        return f"{self.culprits.first}, and the other ranks have not ended" if late else ""


def _attempt(
    spec: LaunchSpec,
    policy: Policy,
    build: Callable[[LaunchSpec, Mapping[str, str]], Invocation],
    env: Mapping[str, str],
    watch: HostWatch | None,
    first_failure: Callable[[], tuple[str, str] | None],
    grace: Grace | None,
    say: Callable[[str], None],
) -> tuple[Attempt, str]:
    """One attempt, and what is known of its first failure; on return nothing of it runs any more on reachable hosts."""
    culprits = Culprits()
    look = _Look(culprits, watch, say, policy.straggle_s)
    ending = execute(build(spec, env), env, grace=grace, say=say, watch=culprits.hear, look=look)
    lost, interrupted_by = _swept(spec, watch, ending)
    recorded = first_failure() if ending.status not in {EXIT_DONE, EXIT_USAGE, EXIT_STOPPED} else None
    if ending.status in {EXIT_DONE, EXIT_STOPPED}:
        culprits.first = None  # whoever ended first did so in order
    host, words = recorded or (culprits.first.host if culprits.first else "", str(culprits.first or ""))
    status = EXIT_FAILED if ending.broken and ending.status == EXIT_DONE else ending.status
    known = {host.name for host in spec.hosts}
    failed_on = next((name for name in known if host and name.partition(".")[0] == host.partition(".")[0]), "")
    stopped_by = ending.stopped_by or interrupted_by
    return Attempt(status=status, stopped_by=stopped_by, lost=lost, failed_on=failed_on), words


def _swept(spec: LaunchSpec, watch: HostWatch | None, ending: Ending) -> tuple[tuple[str, ...], signal.Signals | None]:
    """End what the attempt left on the hosts; the names of those that are lost, and a signal that came meanwhile."""
    if watch is None:
        warden.sweep(spec.token)
        return (), None
    by = None
    if ending.status not in {EXIT_DONE, EXIT_USAGE, EXIT_STOPPED} and ending.stopped_by is None:
        moment = time.monotonic()
        while watch.silent_since(moment) and by is None:  # each answers, or is lost when its time is over
            by = pause(0.2)
            watch.poll()
    watch.order("sweep", SWEEP_S)
    return watch.lost(), by


def _conclude(attempt: Attempt, why: str, last_words: str, say: Callable[[str], None]) -> None:
    if why:
        say(f"hvdtrain: not starting again: {why}")
    if attempt.lost:
        say(f"hvdtrain: lost: {', '.join(attempt.lost)}")
    if last_words and attempt.stopped_by is None:
        say(f"hvdtrain: the first failure: {last_words}")
