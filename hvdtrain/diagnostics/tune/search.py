"""The search for one recipe: trainings that halving asks for, the winner against the defaults, and the profile.

found = tune(Task(recipe=("digits",), size=2), env=os.environ, say=print)
found.proved                                     # whether the winner is faster than the defaults, with 95 % confidence
write(found.profile(), Path("digits.profile"))
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdtrain.diagnostics.bench.alternation import alternate
from hvdtrain.diagnostics.bench.statistics import Estimate, estimate, judge, ratio
from hvdtrain.diagnostics.trainings import Trial, timed
from hvdtrain.diagnostics.tune.candidates import DEFAULT, Candidate, sample, space
from hvdtrain.diagnostics.tune.halving import Round, halve
from hvdtrain.errors import HvdtrainError
from hvdtrain.profile import Profile, write

SHORTEST_S = 60.0  # for one short training, below which none is ended
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be tuned, and how thoroughly.

    Attributes:
        recipe: its name or file, and settings, as after `hvdtrain run`.
        size: ranks.
        where: options of `hvdtrain launch`: hosts and network.
        given: names of settings that the user has chosen, which stay.
        ranks_per_host: on the busiest host.
        cores: of a host.
        candidates: besides the defaults.
        steps: of a training in the first round; later ones are longer.
        starts: of the winner and the defaults, in turn; fewer than six prove nothing.
        nondeterministic: see `candidates.space`.
        seed: decides which candidates are tried.
        shared: a folder that all hosts see.
    """

    recipe: tuple[str, ...]
    size: int
    where: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    ranks_per_host: int = 1
    cores: int = 1
    candidates: int = 6
    steps: int = 12
    starts: int = 6
    nondeterministic: bool = False
    seed: int = 0
    shared: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search has found.

    Attributes:
        task: what was searched for.
        rounds: of halving.
        winner: the best candidate.
        samples: side -> ms per step, one for each start; empty where the defaults won the search.
    """

    task: Task
    rounds: list[Round[Candidate]]
    winner: Candidate
    samples: Mapping[str, list[float]]

    @property
    def over_default(self) -> Estimate | None:
        """The winner's time over that of the defaults; None where these won."""
        return ratio(self.samples["tuned"], self.samples["default"]) if self.samples else None

    @property
    def proved(self) -> bool:
        """Whether the winner is faster than the defaults."""
        over = self.over_default
        return over is not None and judge(over, at_most=1.0) == "held" and over.median < 1.0

    def profile(self) -> Profile:
        """The winner where it is proved, else the defaults."""
        kept = self.winner if self.proved else DEFAULT
        return kept.profile(recipe=" ".join(self.task.recipe), ranks=self.task.size, comparison=self.comparison())

    def comparison(self) -> dict[str, Any]:
        """The winner beside the defaults, for scripts."""
        over = self.over_default
        if over is None:
            return {"winner": "the defaults"}
        sides = {side: asdict(estimate(numbers)) for side, numbers in self.samples.items()}
        return {"winner": self.winner.text, "proved": self.proved, "over_default": asdict(over), "ms_per_step": sides}

    def as_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        rounds = [
            {"steps": one.steps, "ms_per_step": [[candidate.text, _finite(ms)] for candidate, ms in one.ranking]}
            for one in self.rounds
        ]
        return {"profile": asdict(self.profile()), "rounds": rounds, **self.comparison()}


def _finite(ms: float) -> float | None:
    return ms if math.isfinite(ms) else None


def tune(task: Task, *, env: Mapping[str, str], say: Say) -> Found:
    """Search, and verify what was found.

    Raises:
        HvdtrainError: the recipe cannot even be trained with the defaults.
    """
    with tempfile.TemporaryDirectory(prefix="hvdtrain-tune-", dir=task.shared) as folder:
        measure = Measure(task, env, Path(folder).absolute(), say)
        measure(DEFAULT, task.steps, may_fail=False)  # a fault of the recipe is told here, and caches are warm
        everything = space(
            ranks=task.ranks_per_host, cores=task.cores, given=task.given, nondeterministic=task.nondeterministic
        )
        rounds = halve(sample(everything, count=task.candidates, seed=task.seed), measure, steps=task.steps)
        winner = rounds[-1].best
        return Found(task=task, rounds=rounds, winner=winner, samples=_verify(measure, winner, rounds[-1].steps))


def _verify(measure: Measure, winner: Candidate, steps: int) -> dict[str, list[float]]:
    """The winner and the defaults in turn, unless they are the same."""
    if winner == DEFAULT:
        return {}
    sides = {
        "default": lambda: {"step": measure(DEFAULT, steps, may_fail=False)},
        "tuned": lambda: {"step": measure(winner, steps, may_fail=False)},
    }
    return alternate(sides, rounds=measure.task.starts, say=measure.say)["step"]


class Measure:
    """Ms per step of a candidate: one short training under its profile.

    Args:
        task: the recipe, its hosts and ranks.
        env: what trainings inherit.
        folder: for profiles and run directories, seen by all hosts.
        say: is told what came out.
    """

    def __init__(self, task: Task, env: Mapping[str, str], folder: Path, say: Say) -> None:
        self.task, self.say = task, say
        self._env, self._folder = env, folder
        self._slowest_s = 0.0

    def __call__(self, candidate: Candidate, steps: int, *, may_fail: bool = True) -> float:
        """Infinite for a candidate that cannot run here, or takes far longer than others did."""
        file = self._folder / "candidate.profile"
        write(candidate.profile(), file)
        began = os.times().elapsed
        trial = Trial(
            recipe=(*self.task.recipe, "--profile", str(file)),
            size=self.task.size,
            steps=steps,
            where=(*self.task.where, "--profile", str(file)),
        )
        limit_s = max(SHORTEST_S, 4.0 * self._slowest_s) if may_fail else 600.0
        try:
            ms = timed(trial, env=self._env, folder=self._folder, timeout_s=limit_s).ms_per_step
        except HvdtrainError as error:
            if not may_fail:
                raise
            self.say(f"{candidate.text}: not possible here ({error.found.strip().splitlines()[-1][:120]})")
            return math.inf
        self._slowest_s = max(self._slowest_s, os.times().elapsed - began)
        self.say(f"{ms:8.2f} ms per step: {candidate.text}")
        return ms
