"""Whether ranks that were really started found each other, and what that costs a computation.

    facts = TrialFacts(ranks=2, sizes=(2, 2), sums=(3.0, 3.0), alone_ms=1.0, with_horovod_ms=1.1)
all_reduce(facts).status                        # "pass"
cost(facts).found                               # "a computation takes 1.10 times as long ..."
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.checks.finding import Finding, failed, passed, warned

COSTLY = 1.25  # times as long as without Horovod


@dataclass(frozen=True, kw_only=True)
class TrialFacts:
    """What came of a start of some ranks that add their numbers.

    Attributes:
        ranks: how many were asked for.
        launcher: what started them.
        fault: why they could not be started or did not end well; empty where they did.
        remedy: what to do about that.
        sizes: the size that each rank which reported had.
        sums: what each of them got for 1 + 2 + ... + size.
        init_s: how long the slowest one waited for Horovod's start.
        alone_ms: a computation of the slowest rank without Horovod in the process.
        with_horovod_ms: the same, while Horovod's background thread waits for work.
        seconds: the whole trial.
    """

    ranks: int
    launcher: str = "a launcher"
    fault: str = ""
    remedy: str = ""
    sizes: tuple[int, ...] = ()
    sums: tuple[float, ...] = ()
    init_s: float = 0.0
    alone_ms: float = 0.0
    with_horovod_ms: float = 0.0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether all ranks were in one job and had the right sum."""
        total = self.ranks * (self.ranks + 1) / 2
        return self.sizes == (self.ranks,) * self.ranks and self.sums == (total,) * self.ranks


def all_reduce(facts: TrialFacts) -> Finding:
    """Ranks that are started add their numbers."""
    name, asked = "all-reduce", f"{facts.ranks} ranks add their numbers, started by {facts.launcher}"
    if facts.is_right and not facts.fault:
        found = f"{facts.ranks} ranks of {facts.launcher} got {facts.sums[0]:g} in {facts.seconds:.1f} s"
        return passed(name, f"{found}, {facts.init_s:.2f} s of it for hvd.init()")
    remedy = facts.remedy or "look at what fails above; hvdtrain launch --dry-run shows the command"
    if facts.fault:
        return failed(name, asked=asked, found=facts.fault, remedy=remedy)
    found = (
        f"{len(facts.sizes)} ranks reported, of sizes {sorted(set(facts.sizes))}, with sums {sorted(set(facts.sums))}"
    )
    return failed(name, asked=asked, found=found, remedy=remedy)


def cost(facts: TrialFacts) -> Finding:
    """A waiting Horovod leaves the cores to the computation."""
    name = "cost of hvd.init()"
    if not facts.alone_ms:
        return passed(name, "not measured")
    ratio = facts.with_horovod_ms / facts.alone_ms
    found = f"a computation takes {ratio:.2f} times as long while Horovod waits for work"
    if ratio > COSTLY:
        remedy = "fewer ranks than cores; hvdtrain launch (unbound, waiting ranks yield); HOROVOD_CYCLE_TIME=5"
        return warned(name, found=found, remedy=remedy)
    return passed(name, found)


TRIAL_CHECKS: tuple[Callable[[TrialFacts], Finding], ...] = (all_reduce, cost)
