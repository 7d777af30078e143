"""`bench step`: ms per step and samples per second on four models, against what users would take instead.

Each side is a job of its own, started by its own launcher with its own flags, and all sides alternate. The best of a
stated grid is found for each model by one start of each setting, and then measured anew like the others, so that it
does not win by the luck of its search.

    report = step(starts=7)
    report.as_json()["models"]["cnn"]["hvdtrain"]["median_ms"]
    report.geomean_speedup["ddp_gloo"].median

What it asks: how long does a step take where ranks only compute (`no_communication`), and how much more do hvdtrain,
Horovod and DDP make of it?
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.diagnostics.bench.alternation import Samples, alternate
from hvdtrain.diagnostics.bench.circumstances import Circumstances, load_average, observe
from hvdtrain.diagnostics.bench.jobs import Job
from hvdtrain.diagnostics.bench.report import Case, Finding, Report, speedups
from hvdtrain.errors import HvdtrainError

MODELS = ("mlp", "transformer", "cnn", "narrow")
RATES = {"cnn": 0.90, "transformer": 0.90, "mlp": 0.80}  # least part of the rate without communication
LEAST_SPEEDUP = 1.25
STRATEGY = "auto"  # by which hvdtrain is judged: the fastest exact one for the hosts and ranks at hand
HOROVOD_FLAGS: tuple[tuple[str, ...], ...] = ((), jobs.UNBOUND, (*jobs.UNBOUND, *jobs.YIELDING))
HOROVOD_CYCLES_MS = ("0.5", "1", "5")
HOROVOD_FUSIONS_MB = (16, 128)
DDP_BUCKETS_MB = (5, 25, 100)

HorovodSetting = tuple[tuple[str, ...], dict[str, str]]  # flags of mpirun, variables


def horovod_grid() -> list[HorovodSetting]:
    """The settings among which `horovod_tuned` is the best."""
    return [
        (flags, {"HOROVOD_CYCLE_TIME": cycle, "HOROVOD_FUSION_THRESHOLD": str(fusion * 2**20)})
        for flags, cycle, fusion in product(HOROVOD_FLAGS, HOROVOD_CYCLES_MS, HOROVOD_FUSIONS_MB)
    ]


def ddp_grid() -> list[dict[str, Any]]:
    """The settings among which `ddp_gloo_tuned` is the best."""
    return [
        {"bucket_cap_mb": bucket, "gradient_as_bucket_view": view}
        for bucket, view in product(DDP_BUCKETS_MB, (False, True))
    ]


def step(
    *,
    starts: int = 7,
    models: Sequence[str] = MODELS,
    size: int = 2,
    steps: int | None = None,
    tune: bool = True,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure all sides.

    Args:
        starts: how often each side is started.
        models: which of them.
        size: ranks.
        steps: per start and model; what suits the model if None.
        tune: search the grids; otherwise the tuned sides are left out.
        env: what jobs inherit.
        say: is told what is measured now.
    """
    from hvdtrain.diagnostics.bench.models import build

    before = observe(jobs.inherited(env))
    task = {"models": list(models), "steps": steps}
    sides = fixed_sides(task, size)
    measures: dict[str, Callable[[], Mapping[str, float]]] = {
        side: partial(milliseconds, [job], env) for side, job in sides.items()
    }
    commands = {side: jobs.shown(job) for side, job in sides.items()}
    for side, candidates in tuned_sides(task, size).items() if tune else ():
        chosen = best_of(side, candidates, env, say)
        measures[side] = partial(milliseconds, chosen, env)
        commands[side] = "; ".join(f"{' '.join(job.task['models'])}: {setting_of(job)}" for job in chosen)
    samples = alternate(measures, rounds=starts, say=say)
    batches = {model: size * build(model).samples for model in models}
    return report_of(
        samples,
        batches,
        before.closed(load_average(), starts=starts, commands=commands),
        notes=(f"hvdtrain: sync.strategy {STRATEGY}; {size} ranks, one thread each",),
    )


def fixed_sides(task: Mapping[str, Any], size: int) -> dict[str, Job]:
    """The sides that need no search."""
    own = partial(jobs.hvdtrain_launch, "step", size=size)
    return {
        "no_communication": own({**task, "side": "no_communication"}),
        "hvdtrain": own({**task, "side": "hvdtrain", "strategy": STRATEGY}),
        "hvdtrain_allreduce": own({**task, "side": "hvdtrain", "strategy": "allreduce"}),
        "horovod_plain": jobs.mpirun("step", {**task, "side": "horovod"}, size=size),
        "ddp_gloo": jobs.torchrun("step", {**task, "side": "ddp"}, size=size),
    }


def tuned_sides(task: Mapping[str, Any], size: int) -> dict[str, list[Job]]:
    """The candidates of the tuned sides."""
    horovod = [
        jobs.mpirun("step", {**task, "side": "horovod"}, size=size, flags=flags, variables=variables)
        for flags, variables in horovod_grid()
    ]
    ddp = [jobs.torchrun("step", {**task, "side": "ddp", "ddp": setting}, size=size) for setting in ddp_grid()]
    return {"horovod_tuned": horovod, "ddp_gloo_tuned": ddp}


def milliseconds(of: Sequence[Job], env: Mapping[str, str]) -> dict[str, float]:
    """Model -> ms per step, mean over the ranks, of one start of each job.

    A start that fails is made once more: processes of DDP over Gloo abort now and then as they end.
    """
    found: dict[str, float] = {}
    for job in of:
        try:
            ranks = jobs.run(job, env=env)
        except HvdtrainError as error:
            print(f"hvdtrain bench: once more, as it failed: {error}", file=sys.stderr, flush=True)
            ranks = jobs.run(job, env=env)
        found |= {model: 1e3 * statistics.mean(rank[model] for rank in ranks) for model in job.task["models"]}
    return found


def best_of(side: str, candidates: Sequence[Job], env: Mapping[str, str], say: Callable[[str], None]) -> list[Job]:
    """The jobs, one for each setting that is the best for some model, with only those models."""
    tried = []
    for number, job in enumerate(candidates, start=1):
        say(f"{side}: setting {number} of {len(candidates)}")
        tried.append(milliseconds([job], env))
    return assign(candidates, tried)


def assign(candidates: Sequence[Job], tried: Sequence[Mapping[str, float]]) -> list[Job]:
    """Give each model to the candidate that was fastest on it; those without a model are left out."""
    models: dict[int, list[str]] = {}
    for model in tried[0]:
        winner = min(range(len(tried)), key=lambda index: tried[index][model])
        models.setdefault(winner, []).append(model)
    return [with_models(candidates[index], of) for index, of in sorted(models.items())]


def with_models(job: Job, models: Sequence[str]) -> Job:
    """The same job on other models."""
    return Job(
        launcher=job.launcher,
        program=job.program,
        task={**job.task, "models": list(models)},
        size=job.size,
        variables=job.variables,
    )


def setting_of(job: Job) -> str:
    """What was chosen for a tuned side."""
    given = job.task.get("ddp")
    return jobs.shown(job) + (f" {given}" if given else "")


def report_of(
    samples: Samples, batches: Mapping[str, int], circumstances: Circumstances, notes: Sequence[str] = ()
) -> Report:
    """Figures, speed-ups and findings from ms per step, and the global batch size of each model."""
    cases = [Case(model, "ms", sides, batches[model]) for model, sides in samples.items()]
    return Report(
        question="step",
        group="models",
        cases=cases,
        circumstances=circumstances,
        findings=findings(cases),
        notes=notes,
        geomean_speedup=speedups(cases, "hvdtrain"),
    )


def findings(cases: Sequence[Case]) -> list[Finding]:
    """Not slower than any other, faster in the mean than the plain ones, and near the rate without communication."""
    found = []
    for case in cases:
        rivals = [side for side in case.samples if side.startswith(("horovod", "ddp"))]
        found += [
            Finding(text=f"{case.name}: hvdtrain over {rival}", figure=case.ratio("hvdtrain", rival), at_most=1.0)
            for rival in rivals
        ]
        rate = Finding(
            text=f"{case.name}: part of the rate without communication",
            figure=case.ratio("no_communication", "hvdtrain"),
            at_least=RATES.get(case.name),
        )
        found.append(rate)
    overall = speedups(cases, "hvdtrain")
    return found + [
        Finding(text=f"geometric mean: {side} over hvdtrain", figure=overall[side], at_least=LEAST_SPEEDUP)
        for side in ("ddp_gloo", "horovod_plain")
        if side in overall
    ]
