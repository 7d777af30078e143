"""Which exchange a configuration means, and which configurations mean none.

refuse_combination(config, precision="fp32")               # UsageError with the reason
exchange = build_exchange(run, optimizer, SyncConfig(strategy="shared_memory"), name="model")
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hvdtrain.config import SyncConfig
from hvdtrain.errors import UsageError
from hvdtrain.runtime import Run
from hvdtrain.sync.adasum import AdasumExchange
from hvdtrain.sync.allreduce import HorovodExchange
from hvdtrain.sync.asynchronous_server import AsynchronousExchange
from hvdtrain.sync.automatic import fastest_exact
from hvdtrain.sync.contract import Exchange, Reduction
from hvdtrain.sync.local_sgd import LocalSgdExchange
from hvdtrain.sync.parameter_server import ParameterServerExchange, job_of_workers
from hvdtrain.sync.powersgd import PowerSgdExchange
from hvdtrain.sync.shared_memory import SharedMemoryExchange

Builder = Callable[[Run, torch.optim.Optimizer, SyncConfig, str], Exchange]


def _reduction(config: SyncConfig) -> Reduction:
    return "sum" if config.operation == "sum" else "mean"


def _allreduce(run: Run, optimizer: torch.optim.Optimizer, config: SyncConfig, name: str) -> Exchange:
    if config.operation == "adasum":
        return AdasumExchange(run, optimizer, name=name)
    if config.compression == "powersgd":
        return PowerSgdExchange(
            optimizer,
            name=name,
            rank=config.powersgd_rank,
            warm_start=config.powersgd_warm_start,
            error_feedback=config.powersgd_error_feedback,
            seed=run.seed,
        )
    return HorovodExchange(
        optimizer,
        name=name,
        bucket_bytes=config.bucket_bytes if config.deterministic else None,
        reduction=_reduction(config),
        half=config.compression == "fp16",
    )


def _shared_memory(run: Run, optimizer: torch.optim.Optimizer, config: SyncConfig, name: str) -> Exchange:
    return SharedMemoryExchange(run, optimizer, bucket_bytes=config.bucket_bytes, reduction=_reduction(config))


def _local_sgd(run: Run, optimizer: torch.optim.Optimizer, config: SyncConfig, name: str) -> Exchange:
    return LocalSgdExchange(
        run.collectives,
        optimizer,
        name=name,
        local_steps=config.local_steps,
        outer_momentum=config.outer_momentum,
        outer_lr=config.outer_lr,
        nesterov=config.outer_nesterov,
    )


def _parameter_server(run: Run, optimizer: torch.optim.Optimizer, config: SyncConfig, name: str) -> Exchange:
    if config.asynchronous:
        return AsynchronousExchange(run, optimizer, servers=config.servers, staleness=config.staleness)
    return ParameterServerExchange(run, optimizer, servers=config.servers, reduction=_reduction(config))


STRATEGIES: dict[str, Builder] = {
    "allreduce": _allreduce,
    "shared_memory": _shared_memory,
    "local_sgd": _local_sgd,
    "parameter_server": _parameter_server,
}


def build_exchange(run: Run, optimizer: torch.optim.Optimizer, config: SyncConfig, *, name: str) -> Exchange:
    """Collective: the exchange that the configuration names, or that is the fastest exact one where it says `auto`."""
    strategy: str = config.strategy
    if strategy == "auto":
        strategy, why = fastest_exact(run, optimizer, config)
        run.log.info("sync.strategy auto: %s (%s)", strategy, why)
    return STRATEGIES[strategy](run, optimizer, config, name)


def job_of(run: Run, config: SyncConfig) -> Run:
    """The run as its data sees it: ranks that are servers and nothing else get no share."""
    return job_of_workers(run, config.servers) if config.strategy == "parameter_server" else run


def refuse_combination(config: SyncConfig, *, precision: str) -> None:
    """Refuse settings that contradict each other.

    Raises:
        UsageError: with all reasons at once.
    """
    found = combination_faults(config, precision=precision)
    if found:
        raise UsageError(
            f"exchange gradients by {config.strategy}",
            found="; ".join(found),
            remedy="--sync.compression none --sync.operation average, or --sync.strategy allreduce",
            agreed=True,
        )


def combination_faults(config: SyncConfig, *, precision: str) -> list[str]:
    """One sentence for each pair of settings that cannot be had together."""
    strategy: str = "allreduce" if config.strategy == "auto" else config.strategy  # it takes what can be had
    compression: str = config.compression
    operation: str = config.operation
    found = []
    if strategy == "shared_memory" and compression == "fp16":
        found.append("fp16 brings nothing on shared memory: converting 50 MB takes longer than adding them up there")
    elif strategy != "allreduce" and compression != "none":
        found.append(f"sync.compression {compression} is for sync.strategy allreduce, not for {strategy}")
    if strategy == "local_sgd" and operation != "average":
        found.append(f"local_sgd averages parameters: sync.operation {operation} has no meaning there")
    elif strategy != "allreduce" and operation == "adasum":
        found.append(f"adasum is Horovod's, for sync.strategy allreduce, not for {strategy}")
    if config.asynchronous and strategy == "parameter_server" and operation != "average":
        found.append(f"an asynchronous server takes one gradient at a time: sync.operation {operation} has no meaning")
    if operation == "adasum" and compression != "none":
        found.append(f"adasum weighs gradients by their angles, which sync.compression {compression} would change")
    if precision == "fp16" and strategy in ("local_sgd", "parameter_server"):
        found.append(f"train.precision fp16 needs sums that all ranks see, and {strategy} has none: take bf16")
    if precision == "fp16" and compression == "powersgd":
        found.append("train.precision fp16 changes the scale under the errors that powersgd keeps: take bf16")
    return found
