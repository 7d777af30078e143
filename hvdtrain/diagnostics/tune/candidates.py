"""What can be tuned: settings that change when and how gradients travel, never what they are.

All strategies here are exact. Horovod's own autotuner reaches neither cycles below a millisecond, nor fusion above
64 MB, nor any of the rest.

    everything = space(ranks=2, cores=2, given={"sync.strategy"})
    sample(everything, count=12, seed=0)
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hvdtrain.profile import Launching, Profile

CYCLES_MS = ("0", "0.2", "0.5", "1", "2.5", "10")
FUSIONS_MB = (1, 8, 32, 128)
BUCKETS_MB = (1, 4, 8, 32)
STRATEGIES = ("allreduce", "shared_memory", "parameter_server")
TAKES_GROUPS = ("allreduce", "shared_memory")


@dataclass(frozen=True)
class Candidate:
    """One choice of everything; what is left out stays as it is by default.

    Attributes:
        settings: of the exchange, by dotted name, sorted.
        binding: see `hvdtrain.profile.Launching`.
        yielding: likewise.
        variables: of Horovod, sorted.
    """

    settings: tuple[tuple[str, Any], ...] = ()
    binding: str | None = None
    yielding: bool | None = None
    variables: tuple[tuple[str, str], ...] = field(default=())

    def profile(self, **origin: Any) -> Profile:
        """As a profile."""
        launch = Launching(binding=self.binding, yielding=self.yielding, variables=dict(self.variables))
        return Profile(settings=dict(self.settings), launch=launch, origin=origin)

    @property
    def text(self) -> str:
        """For a person."""
        words = [f"{name.removeprefix('sync.')} {value}" for name, value in self.settings]
        words += [f"{name.removeprefix('HOROVOD_').lower()} {value}" for name, value in self.variables]
        words += [f"bind to {self.binding}"] if self.binding else []
        words += ["yield" if self.yielding else "spin"] if self.yielding is not None else []
        return ", ".join(words) or "the defaults"


DEFAULT = Candidate()


def space(*, ranks: int, cores: int, given: Collection[str] = (), nondeterministic: bool = False) -> list[Candidate]:
    """Every combination that makes sense.

    Args:
        ranks: on the busiest host.
        cores: of a host; a rank is bound to a core only where each has one.
        given: settings that the user has chosen, which stay.
        nondeterministic: whether groups may also be left to timing, after which bits differ from run to run.
    """
    bindings = (None, "core") if ranks <= cores else (None,)
    found = []
    for exchange, (binding, yielding) in product(_exchanges(nondeterministic), product(bindings, (True, False))):
        settings, variables = exchange
        if not set(given) & settings.keys():
            found.append(
                Candidate(tuple(sorted(settings.items())), binding, yielding, tuple(sorted(variables.items())))
            )
    return found


def _exchanges(nondeterministic: bool) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Strategies with their groups, and Horovod's variables where Horovod carries the gradients."""
    found: list[tuple[dict[str, Any], dict[str, str]]] = []
    for strategy in STRATEGIES:
        named: dict[str, Any] = {} if strategy == "allreduce" else {"sync.strategy": strategy}
        sizes = BUCKETS_MB if strategy in TAKES_GROUPS else (None,)
        groups = [named if size is None else {**named, "sync.bucket_bytes": size * 2**20} for size in sizes]
        if strategy != "allreduce":
            found += [(settings, {}) for settings in groups]
            continue
        groups += [{"sync.deterministic": False}] if nondeterministic else []
        for settings, cycle, fusion in product(groups, CYCLES_MS, FUSIONS_MB):
            variables = {"HOROVOD_CYCLE_TIME": cycle, "HOROVOD_FUSION_THRESHOLD": str(fusion * 2**20)}
            found.append((settings, variables))
    return found


def sample(everything: Sequence[Candidate], *, count: int, seed: int) -> list[Candidate]:
    """The defaults and so many others, strategies in turn, since most combinations are of one; the same for a seed."""
    generator = random.Random(seed)
    by_strategy: dict[Any, list[Candidate]] = {}
    for candidate in generator.sample(list(everything), len(everything)):
        by_strategy.setdefault(dict(candidate.settings).get("sync.strategy"), []).append(candidate)
    # every second one of the largest group, the others share the rest
    queues = sorted(by_strategy.values(), key=len, reverse=True)
    chosen: list[Candidate] = []
    turn = 0
    while len(chosen) < min(count, len(everything)):
        queue = queues[0] if turn % 2 == 0 or len(queues) == 1 else queues[1 + turn // 2 % (len(queues) - 1)]
        chosen += [queue.pop()] if queue else []
        turn += 1
    return [DEFAULT, *chosen]
