"""The fastest exact strategy for the hosts and ranks at hand: what `sync.strategy auto` means.

It follows from the layout alone, never from a measurement at the start, so that the same job exchanges in the same way
each time. What it rests on is measured in docs/performance.md: where ranks share a host, adding up in shared memory is
faster than Horovod's ring, and what crosses the network is less (2 (hosts - 1) / hosts of the bytes, not
2 (size - 1) / size); where each rank has a host of its own, nothing is left to share.

    fastest_exact(run, optimizer, config)                  # Choice("shared_memory", "2 ranks on 1 host")
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from hvdtrain.config import SyncConfig
from hvdtrain.runtime import Run
from hvdtrain.sync.window import ALIGNMENT, window_fault


class Choice(NamedTuple):
    """A strategy, and why it was taken."""

    strategy: Literal["allreduce", "shared_memory"]
    why: str


def fastest_exact(run: Run, optimizer: torch.optim.Optimizer, config: SyncConfig) -> Choice:
    """Collective: the choice for these ranks, the parameters of this optimizer, and what else was configured."""
    size, hosts = run.topology.size, len(set(run.hosts))
    if config.compression != "none":
        return Choice("allreduce", f"sync.compression is {config.compression}")
    if config.operation == "adasum":
        return Choice("allreduce", "sync.operation is adasum")
    if size == max(hosts, 1):
        return Choice("allreduce", f"no two of the {size} ranks share a host" if size > 1 else "there is one rank")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = sum(parameter.nbytes + ALIGNMENT for parameter in parameters)
    fault = window_fault(
        run.collectives,
        controller=run.controller,
        device=run.device,
        nbytes=gradients * run.topology.local_size,
    )
    if fault:
        return Choice("allreduce", fault)
    return Choice("shared_memory", f"{size} ranks on {hosts} {'host' if hosts == 1 else 'hosts'}")
