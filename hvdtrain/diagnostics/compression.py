"""What compressed gradients make of a step on the network at hand, measured in turns within one run.

A step is a whole one: forward, backward, exchange, update. Its time is the slowest rank's. What arrives is counted by
the interfaces of a host, the loopback aside, so that it shows whether the traffic took the network at all.

    hvdtrain launch -H node1:1,node2:1 --network 10.78.0.0/24 -- python -m hvdtrain.diagnostics.compression
    mlp               ms per step   95 % interval        MB received   none over it   95 % interval
    none              4347          4340 to 4352         50.7          1.0            none of 8
    powersgd          170           166 to 171           0.316         25.6           25.4 to 26.1
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, get_args, get_type_hints

import psutil

import hvdtrain
from hvdtrain.config import SyncConfig
from hvdtrain.diagnostics.bench.alternation import Numbers, Samples, alternate
from hvdtrain.diagnostics.bench.models import COMPARED, build
from hvdtrain.diagnostics.bench.ranks.trainer import optimizer_over
from hvdtrain.diagnostics.bench.statistics import Estimate, estimate, ratio
from hvdtrain.diagnostics.bench.table import number, spread
from hvdtrain.runtime import Run
from hvdtrain.sync import prepare

SIDES: tuple[str, ...] = get_args(get_type_hints(SyncConfig)["compression"])
BASE = "none"
STEP, RECEIVED = "step_ms", "received_mb"  # of one step


def measure(run: Run, *, model: str = "mlp", sides: Sequence[str] = SIDES, rounds: int = 8, steps: int = 2) -> Samples:
    """Collective: milliseconds and megabytes of a step: figure -> side -> one number per round, alike on all ranks.

    Args:
        run: from `hvdtrain.init`.
        model: one of those of the benchmark.
        sides: values of `sync.compression`.
        rounds: how often each side has its turn, after one that is not counted.
        steps: in one turn.
    """
    with ExitStack() as open_exchanges:
        turns = {side: _turn(run, model, side, steps, open_exchanges) for side in sides}
        samples = alternate(turns, rounds=rounds + 1, first=-1)
    return {figure: {side: of[1:] for side, of in rows.items()} for figure, rows in samples.items()}


def _turn(run: Run, model: str, compression: Any, steps: int, open_exchanges: ExitStack) -> Callable[[], Numbers]:
    """Collective: some steps of one side; each side has a model of its own."""
    built = build(model)
    sync = prepare(
        run,
        built.model,
        optimizer_over(built.model),
        config=SyncConfig(compression=compression),
        name=f"compression.{compression}",
    )

    open_exchanges.callback(sync.close)

    def turn() -> Numbers:
        """Collective: some steps, at the speed of the slowest rank."""
        run.collectives.barrier()
        began, before = time.perf_counter(), received_bytes()
        for _ in range(steps):
            sync.backward(built.loss(), built.samples, global_samples=built.samples * run.topology.size)
            sync.update()
        mine = [time.perf_counter() - began, received_bytes() - before]
        seconds, nbytes = map(max, zip(*run.collectives.gather_json(mine), strict=True))
        return {STEP: 1e3 * seconds / steps, RECEIVED: 1e-6 * nbytes / steps}

    return turn


def received_bytes() -> int:
    """What has come to this host over all its interfaces but the loopback."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(of.bytes_recv for name, of in counters.items() if name != "lo")


def as_json(samples: Samples) -> dict[str, Any]:
    """Side -> medians and intervals of its figures, and how many times as fast as the first side it is."""
    base = next(iter(samples[STEP]))
    found: dict[str, dict[str, Estimate]] = {
        side: {
            STEP: estimate(times),
            RECEIVED: estimate(samples[RECEIVED][side]),
            f"{base}_over_it": ratio(samples[STEP][base], times),
        }
        for side, times in samples[STEP].items()
    }
    return {
        side: {name: {"median": one.median, "ci95": [one.low, one.high]} for name, one in figures.items()}
        for side, figures in found.items()
    }


def table(samples: Samples, title: str) -> str:
    """The same as text, one line for each side."""
    base = next(iter(samples[STEP]))
    rows = [(title, "ms per step", "95 % interval", "MB received", f"{base} over it", "95 % interval")]
    for side, times in samples[STEP].items():
        one, faster = estimate(times), ratio(samples[STEP][base], times)
        received = number(estimate(samples[RECEIVED][side]).median)
        rows.append((side, number(one.median), spread(one), received, number(faster.median), spread(faster)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(prog="python -m hvdtrain.diagnostics.compression", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--model", choices=COMPARED, default="mlp", help="(default: %(default)s)")
    made.add_argument("--sides", choices=SIDES, nargs="+", default=SIDES, help="the first is what the others are over")
    made.add_argument("--rounds", type=int, default=8, metavar="N", help="turns of each side (default: %(default)s)")
    made.add_argument("--steps", type=int, default=2, metavar="N", help="steps in one turn (default: %(default)s)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


if __name__ == "__main__":
    arguments = parser().parse_args()
    with hvdtrain.init() as run:
        samples = measure(
            run, model=arguments.model, sides=arguments.sides, rounds=arguments.rounds, steps=arguments.steps
        )
        if run.topology.is_root:
            print(json.dumps(as_json(samples)) if arguments.json else table(samples, arguments.model))
