"""One table of facts -> finding (pass, warn, fail, remedy), of which guard, preflight and `doctor` are three views.

A check is a pure function from facts to findings, so that every case is tested without the machine that makes it; who
gathers the facts is somewhere else. What no table can say is never guessed: a check whose facts are missing passes.

    guard(LaunchFacts(env=os.environ))          # launch: how was this process started?
    compare(everyone)                           # ranks: who differs from the others?
    [check(facts) for check in MACHINE_CHECKS]  # machine, installation: will it work here?
"""

from __future__ import annotations

from hvdtrain.checks.finding import Finding
from hvdtrain.checks.launch import LAUNCH_CHECKS, guard
from hvdtrain.checks.launchfacts import LaunchFacts

__all__ = ["LAUNCH_CHECKS", "Finding", "LaunchFacts", "guard"]
