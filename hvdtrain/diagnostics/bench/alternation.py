"""In which order sides are measured: each in every round, and each equally often early and late.

What changes slowly (temperature, clock rate, a neighbour's work) then meets all sides alike.

    order(("a", "b", "c"), 0)          # ("a", "b", "c")
    order(("a", "b", "c"), 1)          # ("c", "b", "a")
    order(("a", "b", "c"), 2)          # ("b", "c", "a")
    samples = alternate({"a": measure_a, "b": measure_b}, rounds=7)
    samples["step"]["a"]               # seven numbers, in the order of rounds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Numbers: TypeAlias = Mapping[str, float]  # case -> the number of one start
Samples: TypeAlias = dict[str, dict[str, list[float]]]  # case -> side -> one number per round


def order(sides: Sequence[str], round_number: int) -> tuple[str, ...]:
    """The sides in the order of one round: forwards and backwards in turn, begun one further every second round."""
    turn = round_number // 2 % max(1, len(sides))
    turned = (*sides[turn:], *sides[:turn])
    return turned[::-1] if round_number % 2 else turned


def alternate(
    sides: Mapping[str, Callable[[], Numbers]],
    *,
    rounds: int,
    first: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Samples:
    """Measure each side once in every round.

    Args:
        sides: what measures each side once, as one number for each case.
        rounds: how often each is measured.
        first: the number of the first round, where one process measures only some of the rounds.
        say: is told what is measured now.
    """
    samples: Samples = {}
    for number in range(rounds):
        for side in order(tuple(sides), first + number):
            say(f"round {number + 1} of {rounds}: {side}")
            for case, value in sides[side]().items():
                samples.setdefault(case, {}).setdefault(side, []).append(value)
    return {case: {side: of[side] for side in sides if side in of} for case, of in samples.items()}


def join(parts: Sequence[Mapping[str, Mapping[str, float]]]) -> Samples:
    """The samples of starts each of which has measured all sides by itself: case -> side -> one number per start."""
    samples: Samples = {}
    for part in parts:
        for case, sides in part.items():
            for side, value in sides.items():
                samples.setdefault(case, {}).setdefault(side, []).append(value)
    return samples
