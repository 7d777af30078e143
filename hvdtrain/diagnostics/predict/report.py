"""What was fitted and what is foretold, for people and for scripts; what was measured is told from what is a model.

print(text(fitted, forecasts, network=None, subject="digits"))
as_json(fitted, forecasts, network=None)["forecasts"]["4"]["ms_per_step"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hvdtrain.diagnostics.bench.table import aligned, number
from hvdtrain.diagnostics.predict.model import Fitted, Forecast, Link, Network

HEAD = ("ranks", "ms per step", "interval", "samples/s", "compute", "exchange", "hidden", "all-reduce")


def text(fitted: Fitted, forecasts: Sequence[Forecast], *, network: Network | None, subject: str) -> str:
    """For a terminal."""
    rows = [HEAD, *(_row(one) for one in forecasts)]
    measured = "\n".join(f"  {line}" for line in _measured(fitted))
    model = "\n".join(f"  {line}" for line in _model(fitted, forecasts, network))
    return f"{subject}\n\nmeasured, on one and two ranks\n{measured}\n\npredicted\n{model}\n\n{aligned(rows)}\n"


def _row(one: Forecast) -> tuple[str, ...]:
    parts = [f"{number(value)} ms" for value, _ in one.parts.values()]
    spread = f"{number(one.low)} to {number(one.high)}"
    return (str(one.size), number(one.ms), spread, number(one.samples_per_s), *parts, one.algorithm)


def _measured(fitted: Fitted) -> list[str]:
    steps = ", ".join(f"{number(ms)} ms at {density:g} a core" for density, ms in sorted(fitted.two_ranks.items()))
    return [
        f"one rank: {number(fitted.compute.intercept)} ms and {number(1e3 * fitted.compute.slope)} us a sample",
        f"two ranks: {steps}; starts differ by {100 * fitted.spread:.0f} % either way",
        *(f"link, {density:g} a core: {_link(link)}" for density, link in sorted(fitted.links.items())),
        f"{fitted.gradient_bytes:,.0f} bytes of gradients in groups of {fitted.bucket_bytes:,.0f}",
    ]


def _link(link: Link) -> str:
    lines = {"one way": link.one_way, "an exchange": link.exchange, "an all-reduce": link.horovod}
    return "; ".join(
        f"{name} {number(line.intercept)} us and {number(1e3 * line.slope)} us a KB (off by {100 * line.worst:.0f} %)"
        for name, line in lines.items()
    )


def _model(fitted: Fitted, forecasts: Sequence[Forecast], network: Network | None) -> list[str]:
    said = ["beyond two ranks nothing was measured: the exchange grows by what the all-reduce sends, see docs"]
    mpi = f"{fitted.flavour} {'.'.join(map(str, fitted.version))}"
    said.append(f"taken for granted: the all-reduce that {mpi} chooses by itself, one link for each rank")
    if network is not None:
        said.append(f"over {network.bandwidth_mbit:g} Mbit/s and {network.latency_us:g} us, which were not measured")
    if fitted.cores is not None:
        said.append(f"all ranks share {fitted.cores} cores")
    per_rank = "the samples of a rank stay" if fitted.fixed_per_rank else f"{fitted.samples:g} samples a step"
    return [*said, f"work: {per_rank}, whatever the number of ranks"]


def as_json(fitted: Fitted, forecasts: Sequence[Forecast], *, network: Network | None) -> dict[str, Any]:
    """For scripts."""
    return {
        "measured": asdict(fitted),
        "assumed": {"network": asdict(network) if network else "as measured", "beyond_ranks": 2},
        "forecasts": {
            str(one.size): {
                "ms_per_step": one.ms,
                "interval_ms": [one.low, one.high],
                "samples_per_s": one.samples_per_s,
                "algorithm": one.algorithm,
                "parts": {name: {"ms": value, "from": origin} for name, (value, origin) in one.parts.items()},
            }
            for one in forecasts
        },
    }
