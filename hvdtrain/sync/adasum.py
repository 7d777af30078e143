"""Adasum: ranks' gradients combined so that what they agree on is averaged and what is orthogonal is added.

Each rank contributes the mean gradient of its own samples, each parameter is combined by itself. For two gradients,
Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b; more ranks are combined by halving distances, which needs a
power of two of them. The learning rate is that of one rank, not of the global batch.

    exchange = AdasumExchange(run, optimizer, name="model")    # UsageError unless the size is a power of two

Source: Maleki et al., Scaling Distributed Training with Adaptive Summation (2020); Horovod's implementation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.errors import UsageError
from hvdtrain.runtime import Run
from hvdtrain.sync.contract import Reduction, Stateless
from hvdtrain.sync.grouped import Group
from hvdtrain.topology import Topology


def refuse_size(topology: Topology) -> None:
    """Refuse a size for which Horovod's Adasum would fail at the first step.

    Raises:
        UsageError: it is no power of two.
    """
    if topology.size & (topology.size - 1):
        below = 1 << (topology.size.bit_length() - 1)
        raise UsageError(
            f"combine the gradients of {topology.size} ranks by Adasum",
            found="it halves the ranks again and again, which needs a power of two of them",
            remedy=f"-np {below} or -np {2 * below}, or --sync.operation average",
            agreed=True,
        )


class AdasumExchange(Stateless):
    """Gradients combined by Horovod's Adasum after backward; see `hvdtrain.sync.contract.Exchange`.

    Args:
        run: of this rank.
        optimizer: the model's.
        name: distinguishes several exchanges in one process.
    """

    reduction: Reduction = "local"

    def __init__(self, run: Run, optimizer: torch.optim.Optimizer, *, name: str) -> None:
        refuse_size(run.topology)
        self._optimizer = optimizer
        self._gradients, self._signal = Group(f"{name}.adasum", adasum=True), Group(f"{name}.adasum.signal")
        self._parameters: list[Parameter] = []

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """From now on exchange these parameters' gradients."""
        self._parameters = list(parameters.values())

    def arm(self, *, last: bool) -> None:
        """Nothing is sent before `finish`."""

    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """Collective: combine all gradients, and sum the signal beside them."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        summed = signal.clone()
        self._gradients.reduce([p.grad for p in self._parameters if p.grad is not None])
        self._signal.reduce([summed])
        return summed

    def step(self) -> None:
        """One step of the model's optimizer."""
        self._optimizer.step()

    def close(self) -> None:
        """Forget the parameters."""
        self._parameters = []
