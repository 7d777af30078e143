"""What an all-reduce sends, one message after the other, at each number of ranks.

Three kinds of messages are told apart, because a link carries them at different rates: those that go one way; exchanges
of two ranks with each other, which over TCP can take twice as long, since the reply that starts one direction waits
behind the bytes of the other; and passes around a ring, where links carry both directions as well, but replies have a
connection without other bytes. These lie in between: where, was found by runs on three and four hosts.

    cost = ring(4)                                 # Cost(around=(0.25,) * 6)
    chosen("openmpi", (5, 0, 11), size=3, nbytes=2**20, between_hosts=False)     # "rabenseifner"
    cost.us(2**20, exchange=line, one_way=line)

Sources: Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication Operations in MPICH, for the
algorithms; Open MPI's `coll/tuned` for which of them is taken (its fixed decisions of 4.1 to 5.0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.diagnostics.predict.line import Line
from hvdtrain.launch.openmpi_rules import takes_ring

IN_RING = 0.1  # of what an exchange takes longer than a message one way
SMALL = 8192  # bytes, from which Open MPI sends as few as it can instead of as seldom, for four ranks and more


@dataclass(frozen=True)
class Cost:
    """Of one all-reduce, along its longest chain of messages, each as a part of the buffer.

    Attributes:
        exchanges: two ranks send to each other at the same time.
        passes: messages in one direction of a link.
        around: messages of a ring.
    """

    exchanges: tuple[float, ...] = ()
    passes: tuple[float, ...] = ()
    around: tuple[float, ...] = ()

    def us(self, nbytes: float, *, exchange: Line, one_way: Line) -> float:
        """Microseconds, where two ranks have measured those for an exchange and for one message, by bytes."""

        def total(line: Line, parts: tuple[float, ...]) -> float:
            return sum(line.at(part * nbytes) for part in parts)

        around = (1.0 - IN_RING) * total(one_way, self.around) + IN_RING * total(exchange, self.around)
        return total(exchange, self.exchanges) + total(one_way, self.passes) + around


def ring(size: int) -> Cost:
    """Each rank passes parts of the buffer on, 2 (size - 1) times; two ranks are a pair."""
    messages = (1.0 / size,) * (2 * (size - 1))
    return Cost(exchanges=messages) if size == 2 else Cost(around=messages)


def recursive_doubling(size: int) -> Cost:
    """Pairs exchange whole buffers; ranks beyond a power of two give theirs away first and get the result last."""
    power = size.bit_length() - 1
    return Cost((1.0,) * power, (1.0, 1.0) if size > 2**power else ())


def rabenseifner(size: int) -> Cost:
    """Pairs exchange halves, quarters, ... and collect them again; those beyond a power of two cost two more."""
    halves = tuple(0.5**number for number in range(1, size.bit_length()))
    within = halves + halves[::-1]
    if size == 2 ** len(halves):
        return Cost(within)
    # halves are exchanged, one half comes back, and in the end the whole result goes to the rank that stood by
    return Cost((0.5, *within), (0.5, 1.0))


ALGORITHMS: dict[str, Callable[[int], Cost]] = {
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
}


def chosen(flavour: str, version: tuple[int, ...], *, size: int, nbytes: float, between_hosts: bool) -> str:
    """Which algorithm an MPI takes for a buffer of such a size; a ring where that is not known, or is asked for."""
    if flavour != "openmpi" or (between_hosts and takes_ring(size, nbytes)):
        return "ring"
    if version < (4, 1):
        return "recursive_doubling" if nbytes < 10_000 else "ring"
    if size < 4:
        return _of_few(nbytes)
    return "recursive_doubling" if nbytes < SMALL else "rabenseifner"


def _of_few(nbytes: float) -> str:
    """Open MPI's choice for two and three ranks."""
    if nbytes >= 262_144:
        return "rabenseifner"
    if 8 <= nbytes < 4096 or 8192 <= nbytes < 16_384:
        return "recursive_doubling"
    return "ring"


def cost(algorithm: str, size: int) -> Cost:
    """Of that algorithm; nothing is sent by one rank."""
    return ALGORITHMS[algorithm](size) if size > 1 else Cost()
