"""The model of scaling: what a step takes at any number of ranks, from what it took at one and two.

    step(p)     = compute(samples of a rank) * density(p) + exchange(p)
    exchange(p) = messages(p) * exchange(2), as measured / messages(2) - what backward hides
    messages(p) = the time of all messages that wait for each other in the all-reduce that MPI chooses at p ranks

The time of one message, one way and as an exchange, was measured between two ranks, as was what backward hides. Where
several pairs exchange at the same time, all wait for the slowest, so what exchanges differ by counts as well.
`density` is how many ranks share a core. As soon as it is more than one, some rank always waits for a core and all
others for that rank, so messages take longer, too: how long is measured at two ranks on one core. Nothing of this was
measured beyond two ranks, and `Forecast.parts` says which number came from where.

    forecast(fitted, size=4)
    forecast(fitted, size=4, network=Network(bandwidth_mbit=1000.0, latency_us=50.0))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from hvdtrain.diagnostics.predict.algorithms import chosen, cost
from hvdtrain.diagnostics.predict.line import Line

BEYOND = (
    0.15  # of the exchange, for each doubling of ranks beyond two and at least once: what the model may be wrong by
)
NETWORK = 0.15  # of the exchange, over a network that was not measured


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that is to be predicted for, other than that of the measurement.

    Attributes:
        bandwidth_mbit: of each rank's link, in each direction, in 10**6 bits per second.
        latency_us: of one message.
    """

    bandwidth_mbit: float
    latency_us: float = 50.0

    @property
    def us_per_byte(self) -> float:
        """One byte, in one direction."""
        return 8.0 / self.bandwidth_mbit


@dataclass(frozen=True, kw_only=True)
class Link:
    """What two ranks measured of the network between them, microseconds by bytes.

    Attributes:
        one_way: one message.
        exchange: two messages that cross each other.
        horovod: one all-reduce by Horovod, with its negotiation.
        unsteady: standard deviation of an exchange, as a part of its mean.
    """

    one_way: Line
    exchange: Line
    horovod: Line
    unsteady: float = 0.0

    def slowest(self, pairs: int) -> Line:
        """An exchange that so many pairs make at the same time, of which all wait for the slowest.

        Blom 1958, Statistical Estimates and Transformed Beta-Variables: the largest of some normal deviates.
        """
        most = NormalDist().inv_cdf((pairs - 0.375) / (pairs + 0.25)) if pairs > 1 else 0.0
        factor = 1.0 + most * self.unsteady
        return Line(factor * self.exchange.intercept, factor * self.exchange.slope)

    @property
    def pair(self) -> float:
        """How many times as long a byte of an exchange takes; 1 is full duplex."""
        return max(1.0, self.exchange.slope / self.one_way.slope) if self.one_way.slope > 0 else 1.0

    def over(self, network: Network) -> Link:
        """The same ranks over another network: each byte takes what the slower of link and rank takes."""
        more = network.latency_us - self.one_way.intercept
        slope = max(network.us_per_byte, self.one_way.slope)
        return Link(
            one_way=Line(network.latency_us, slope),
            exchange=Line(
                max(network.latency_us, self.exchange.intercept + more), max(self.exchange.slope, self.pair * slope)
            ),
            horovod=self.horovod,
            unsteady=self.unsteady,
        )


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """All that the model knows.

    Attributes:
        compute: ms of a step on one rank alone, by the samples of that rank.
        two_ranks: density -> ms of a step on two ranks; 1 is a core to each.
        spread: half of the range of repeated measurements, as a part of their median.
        links: density -> the link of the measurement's own network.
        gradient_bytes: exchanged in a step.
        bucket_bytes: of one group of gradients.
        samples: of a step, over all ranks together; see `fixed_per_rank`.
        fixed_per_rank: the samples of a rank stay (those of two ranks), so the global batch grows; else it is fixed.
        cores: that all ranks share; None where each has one to itself.
        between_hosts: whether ranks that were measured were on hosts of their own, as those that are predicted will be.
        flavour: of the MPI: `openmpi`, or another.
        version: of the MPI.
    """

    compute: Line
    two_ranks: Mapping[float, float]
    spread: float
    links: Mapping[float, Link]
    gradient_bytes: float
    bucket_bytes: float
    samples: float
    fixed_per_rank: bool = False
    cores: int | None = None
    between_hosts: bool = False
    flavour: str = "openmpi"
    version: tuple[int, ...] = (5,)

    def samples_of_rank(self, size: int) -> float:
        """In one step."""
        return self.samples / (2 if self.fixed_per_rank else size)

    def density(self, size: int) -> float:
        """Ranks per core, at least one."""
        return 1.0 if self.cores is None else max(1.0, size / self.cores)

    def known(self, density: float) -> float:
        """The density of the measurement that is taken for this one: the next higher, or the highest."""
        return min([one for one in self.two_ranks if one >= density] or [max(self.two_ranks)])

    def added(self, density: float) -> float:
        """Ms that the exchange adds to a step on two ranks at a density that was measured."""
        return max(0.0, self.two_ranks[density] - density * self.compute.at(self.samples_of_rank(2)))


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a step is to take.

    Attributes:
        size: number of ranks.
        ms: per step.
        low: lower end of the interval.
        high: upper end.
        samples_per_s: over all ranks.
        algorithm: of the all-reduce, as assumed.
        parts: what the figure is made of: name -> (number, where it came from).
    """

    size: int
    ms: float
    low: float
    high: float
    samples_per_s: float
    algorithm: str
    parts: Mapping[str, tuple[float, str]] = field(default_factory=dict)


def exchange_ms(fitted: Fitted, size: int, network: Network | None) -> tuple[float, float, str]:
    """What the exchange adds to a step, what of it backward is thought to hide, and by which algorithm."""
    density = fitted.density(size)
    known = fitted.known(density)
    link = fitted.links[known]
    groups = max(1, math.ceil(fitted.gradient_bytes / fitted.bucket_bytes))
    nbytes = fitted.gradient_bytes / groups
    between_hosts = fitted.between_hosts or network is not None

    def algorithm(ranks: int) -> str:
        return chosen(fitted.flavour, fitted.version, size=ranks, nbytes=nbytes, between_hosts=between_hosts)

    def messages(ranks: int, over: Link) -> float:
        costs = cost(algorithm(ranks), ranks)
        return 1e-3 * groups * costs.us(nbytes, exchange=over.slowest(ranks // 2), one_way=over.one_way)

    added = fitted.added(known)
    alone = 1e-3 * groups * link.horovod.at(nbytes)
    hidden = max(0.0, min(alone - added, fitted.compute.at(fitted.samples_of_rank(2))))
    whole = (added + hidden) * max(1.0, density / known)
    if network is None:
        total = whole * messages(size, link) / messages(2, link)
    else:  # what Horovod adds to its messages stays
        total = max(0.0, whole - messages(2, link)) + messages(size, link.over(network))
    return max(0.0, total - hidden), min(hidden, total), algorithm(size)


def forecast(fitted: Fitted, *, size: int, network: Network | None = None) -> Forecast:
    """Ms per step and samples per second at `size` ranks, with an interval.

    Raises:
        ValueError: there is no such number of ranks.
    """
    if size < 1:
        raise ValueError(f"{size} ranks")
    density = fitted.density(size)
    compute = density * fitted.compute.at(fitted.samples_of_rank(size))
    exchange, hidden, algorithm = exchange_ms(fitted, size, network) if size > 1 else (0.0, 0.0, "none")
    ms = compute + exchange
    doublings = max(1.0, math.log2(size / 2)) if size > 2 else 0.0
    wrong = math.hypot(
        fitted.spread, BEYOND * doublings * exchange / ms, (network is not None) * NETWORK * exchange / ms
    )
    samples = fitted.samples_of_rank(size) * size
    parts = {
        "compute": (compute, "one rank, measured" if density == 1 else f"one rank, measured; {density:g} ranks a core"),
        "exchange": (exchange, "two ranks, measured" if size == 2 and network is None else "model beyond two ranks"),
        "hidden in backward": (hidden, "two ranks against the all-reduce alone"),
    }
    return Forecast(
        size=size,
        ms=ms,
        low=ms * (1.0 - wrong),
        high=ms * (1.0 + wrong),
        samples_per_s=1e3 * samples / ms,
        algorithm=algorithm,
        parts=parts,
    )
