"""The gradient exchange: one contract, one file for each strategy, and one step that all of them share.

`contract` says what a trainer needs and what a strategy must give; `step` is the update that every synchronous strategy
shares; `strategies` is the table of them; `signal` is the table by which ranks agree within the exchange.

    sync = prepare(run, model, optimizer)                  # everyone has root's values now
    for batch in batches:
        sync.step(loss_function(model, batch.data), batch)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from hvdtrain.config import SentinelConfig, SyncConfig
from hvdtrain.runtime import Run
from hvdtrain.sync.clipping import Clipping
from hvdtrain.sync.precision import Precision, PrecisionName
from hvdtrain.sync.sentinel import Sentinel
from hvdtrain.sync.step import SynchronousStep
from hvdtrain.sync.strategies import build_exchange, refuse_combination


def prepare(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    config: SyncConfig | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    metrics: Sequence[str] = (),
    name: str = "model",
    nonfinite: Literal["fail", "skip"] = "fail",
    precision: PrecisionName = "fp32",
    sentinel: SentinelConfig | None = None,
) -> SynchronousStep:
    """Collective: make model and optimizer those of root on every rank, and give the object that makes steps.

    Args:
        run: from `hvdtrain.init`.
        model: on this rank's device already.
        optimizer: over the model's parameters; it is not replaced, and may hold a loaded state.
        config: the strategy and its settings.
        clip_norm: largest 2-norm of the averaged gradient.
        clip_value: largest magnitude of one of its elements.
        metrics: names that `step(..., metrics=...)` will report.
        name: another one for each further model in the same process.
        nonfinite: when a loss or gradient is infinite or not a number: raise on all ranks, or leave the step out.
        precision: of forward and backward, which are to be inside `with sync.autocast():`.
        sentinel: when ranks' replicas are compared, and what a difference does.

    Raises:
        UsageError: the model or optimizer cannot be trained so; see the message.
        ReplicaMismatch: ranks built different models.
    """
    settings = config or SyncConfig()
    refuse_combination(settings, precision=precision)
    exchange = build_exchange(run, optimizer, settings, name=name)
    clipping = Clipping(norm=clip_norm, value=clip_value)
    watch, replicated = sentinel or SentinelConfig(), exchange.replicated
    sync = SynchronousStep(
        run.collectives,
        model,
        optimizer,
        exchange,
        metrics=metrics,
        clipping=clipping,
        precision=Precision(precision, run.device),
        overlap=settings.overlap,
        dense=settings.sparse == "dense",
        nonfinite=nonfinite,
        phases=run.phases,
        sentinel=Sentinel(
            model,
            optimizer,
            run.collectives,
            every_steps=watch.every_steps if replicated else None,
            policy=watch.policy,
        ),
    )
    sync.prepare()
    return sync
