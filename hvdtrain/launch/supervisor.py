"""Runs a job again until it is done: what to do after each attempt is one pure decision, `after`.

0 and 2 end it. 75 starts it again without counting, where restarts were asked for at all. Anything else counts, waits
longer each time, and goes on without the hosts that are lost, or without the one that failed when the others have slots
enough. Whoever asked for the end gets it. The first failure is what is printed last.

    policy = Policy(max_restarts=3, min_np=2, lost_after_s=30)
    after(Attempt(status=1, lost=("gpu02",)), spec, policy, restarts=0)
    # Again(spec=<the same job on gpu01>, counted=True, wait_s=1.0, because="gpu02 is lost")
    status = supervise(spec, policy, build=choice.build, env=os.environ)
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hvdtrain.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from hvdtrain.launch import warden
from hvdtrain.launch.culprit import Culprits
from hvdtrain.launch.execution import Ending, Grace, execute, nothing_broken, pause, say_on_stderr, signals_taken
from hvdtrain.launch.hostwatch import HostWatch, spawn_over_ssh
from hvdtrain.launch.spec import Host, Invocation, LaunchSpec, resuming

LONGEST_WAIT_S = 30.0
SWEEP_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the user allows.

    Attributes:
        max_restarts: how many failures are followed by another attempt; 0 never starts again.
        min_np: with how few ranks the job may go on; None is all that it started with.
        lost_after_s: a host that has not answered for so long is lost.
    """

    max_restarts: int = 0
    min_np: int | None = None
    lost_after_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How one attempt ended.

    Attributes:
        status: the job's exit status.
        stopped_by: the signal by which someone asked for the end.
        lost: hosts that do not answer any more.
        failed_on: the host of the first failure, where it is known; it does answer.
    """

    status: int
    stopped_by: signal.Signals | None = None
    lost: tuple[str, ...] = ()
    failed_on: str = ""


@dataclass(frozen=True, kw_only=True)
class Again:
    """Another attempt: with which specification, whether it counts, after how long, and why."""

    spec: LaunchSpec
    counted: bool
    wait_s: float
    because: str


def after(attempt: Attempt, spec: LaunchSpec, policy: Policy, *, restarts: int, failed_before: str = "") -> Again | str:
    """What comes after `attempt`: another one, or the reason why there is none (empty when none is needed).

    Args:
        attempt: how the last one ended.
        spec: what it was.
        policy: what the user allows.
        restarts: how many restarts have been counted so far.
        failed_before: the host on which the attempt before failed first.
    """
    if attempt.stopped_by is not None or attempt.status in {EXIT_DONE, EXIT_USAGE} or policy.max_restarts == 0:
        return ""
    again = replace(spec, command=resuming(spec.command))
    if attempt.status == EXIT_STOPPED and not attempt.lost:
        return Again(spec=again, counted=False, wait_s=1.0, because="it stopped with a checkpoint")
    if restarts >= policy.max_restarts:
        return f"{restarts} restarts are used up (--max-restarts {policy.max_restarts})"
    least = spec.size if policy.min_np is None else policy.min_np
    hosts = tuple(host for host in spec.hosts if host.name not in attempt.lost)
    if spec.hosts and _slots(hosts) < least:
        gone = ", ".join(attempt.lost)
        return f"{gone} lost: {_slots(hosts)} slots are left for at least {least} ranks (--min-np)"
    hosts, because = _without_failed(hosts, attempt, spec, least, failed_before)
    size = min(spec.size, _slots(hosts)) if hosts else spec.size
    again = replace(again, hosts=hosts, size=size)
    return Again(spec=again, counted=True, wait_s=min(LONGEST_WAIT_S, 2.0**restarts), because=because)


def _slots(hosts: tuple[Host, ...]) -> int:
    return sum(host.limit for host in hosts)


def _without_failed(
    hosts: tuple[Host, ...], attempt: Attempt, spec: LaunchSpec, least: int, failed_before: str
) -> tuple[tuple[Host, ...], str]:
    """The hosts to go on with: a host that failed is left out where that costs nothing, or when it failed twice."""
    if attempt.lost:
        return hosts, f"{', '.join(attempt.lost)} lost"
    others = tuple(host for host in hosts if host.name != attempt.failed_on)
    needed = least if attempt.failed_on and attempt.failed_on == failed_before else spec.size
    if attempt.failed_on and others != hosts and _slots(others) >= needed:
        return others, f"it failed on {attempt.failed_on}, which is left out"
    return hosts, f"it failed with status {attempt.status}"


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
                attempt, last_words = _attempt(spec, build, env, watch, first_failure, grace, say)
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


def _attempt(
    spec: LaunchSpec,
    build: Callable[[LaunchSpec, Mapping[str, str]], Invocation],
    env: Mapping[str, str],
    watch: HostWatch | None,
    first_failure: Callable[[], tuple[str, str] | None],
    grace: Grace | None,
    say: Callable[[str], None],
) -> tuple[Attempt, str]:
    """One attempt, and what is known of its first failure; on return nothing of it runs any more on reachable hosts."""
    culprits = Culprits()
    warned: set[str] = set()

    def look() -> str:
        assert watch is not None  # else nobody looks
        watch.poll()
        for name in set(watch.unwatched()) - warned:
            say(f"hvdtrain: warning: {name} is not watched, as ssh has not reached it: its loss would go unnoticed")
            warned.add(name)
        return ", ".join(f"{name} has not answered for too long" for name in watch.lost())

    looking = look if watch else nothing_broken
    ending = execute(build(spec, env), env, grace=grace, say=say, watch=culprits.hear, look=looking)
    lost, interrupted_by = _swept(spec, watch, ending)
    recorded = first_failure() if ending.status not in {EXIT_DONE, EXIT_USAGE, EXIT_STOPPED} else None
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
