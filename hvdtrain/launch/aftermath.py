"""What comes after an attempt to run a job: one pure decision, `after`.

0 and 2 end it. 75 starts it again without counting, where restarts were asked for at all. Anything else counts, waits
longer each time, and goes on without the hosts that are lost, or without the one that failed when the others have slots
enough. Whoever asked for the end gets it.

    policy = Policy(max_restarts=3, min_np=2, lost_after_s=30)
    after(Attempt(status=1, lost=("gpu02",)), spec, policy, restarts=0)
    # Again(spec=<the same job on gpu01>, counted=True, wait_s=1.0, because="gpu02 lost")
    after(Attempt(status=0), spec, policy, restarts=0)                    # "": there is nothing to do
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from hvdtrain.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USAGE
from hvdtrain.launch.spec import Host, LaunchSpec, resuming

LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the user allows.

    Attributes:
        max_restarts: how many failures are followed by another attempt; 0 never starts again.
        min_np: with how few ranks the job may go on; None is all that it started with.
        lost_after_s: a host that has not answered for so long is lost.
        straggle_s: how long ranks may live on after the launcher said that one of them failed.
    """

    max_restarts: int = 0
    min_np: int | None = None
    lost_after_s: float = 30.0
    straggle_s: float = 15.0


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
