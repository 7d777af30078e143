"""Local SGD: each rank makes steps of its own, and every so many of them all ranks average their parameters.

Ranks weigh by the samples that they used since the last average, and the optimizer's state is averaged likewise, so
with one local step and no outer momentum this is the all-reduce, for any optimizer that is linear in the gradient. The
move from one average to the next can be treated as a gradient itself, by an outer optimizer with momentum.

    exchange = LocalSgdExchange(run, optimizer, name="model", local_steps=8, outer_momentum=0.9, outer_lr=0.7)
    exchange.step()                            # the rank's own; with every eighth, parameters are equal on all ranks
    with exchange.settled(): ...               # equal in here, and each rank's own again afterwards

A small signal is still exchanged in each step, so that ranks agree on stops and faults at the same one.

Source: Stich, Local SGD (2019); Wang et al., SlowMo (2020); Douillard et al., DiLoCo (2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.collectives import Collectives
from hvdtrain.sync.contract import Reduction
from hvdtrain.sync.grouped import Group


class LocalSgdExchange:
    """Averages of parameters instead of gradients; see `hvdtrain.sync.contract.Exchange`.

    Args:
        collectives: of the run.
        optimizer: the model's, whose steps are local.
        name: distinguishes several exchanges in one process.
        local_steps: from one average to the next.
        outer_momentum: of the moves between averages; 0 takes the averages as they are.
        outer_lr: factor of these moves.
        nesterov: look ahead with the outer momentum.
    """

    reduction: Reduction = "local"
    equal_gradients = False
    replicated = False
    lockstep = True
    flat: Sequence[Tensor] | None = None
    flat_norm: float | None = None
    norm = None

    def __init__(
        self,
        collectives: Collectives,
        optimizer: torch.optim.Optimizer,
        *,
        name: str,
        local_steps: int,
        outer_momentum: float = 0.0,
        outer_lr: float = 1.0,
        nesterov: bool = False,
    ) -> None:
        self._collectives, self._optimizer, self._local_steps = collectives, optimizer, local_steps
        self._momentum, self._outer_lr, self._nesterov = outer_momentum, outer_lr, nesterov
        self._signal, self._averaging = Group(f"{name}.local_sgd.signal"), Group(f"{name}.local_sgd")
        self._parameters: dict[str, Parameter] = {}
        self._anchors: dict[str, Tensor] = {}  # the last averages, the same on all ranks
        self._moves: dict[str, Tensor] = {}  # the outer momentum, likewise
        self._made = 0  # local steps since the last average
        self._samples = 0  # of this rank in them

    @property
    def _is_plain(self) -> bool:
        return self._momentum == 0.0 and self._outer_lr == 1.0

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """Collective: from now on average these parameters; those that are new begin with the values they have."""
        if self._made:
            self.settle()
        self._parameters = dict(parameters)
        self._anchors = {name: p.detach().clone() for name, p in parameters.items()}
        self._moves = {n: self._moves.get(n, torch.zeros_like(a)) for n, a in self._anchors.items()}

    def arm(self, *, last: bool) -> None:
        """Gradients are not sent."""

    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """Collective: sum the signals; gradients stay this rank's own."""
        summed = signal.clone()
        self._signal.reduce([summed])
        self._samples += samples
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return summed

    def step(self) -> None:
        """Collective (with each `local_steps`-th call): the rank's own step, and then the average if it is due."""
        self._optimizer.step()
        self._made += 1
        if self._made == self._local_steps:
            self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Collective, when steps were made since the last average: average now."""
        if not self._made:
            return
        self._average(self._parameters, self._states())
        if not self._is_plain:
            for name, parameter in self._parameters.items():
                self._move(name, parameter)
        self._anchors = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._made, self._samples = 0, 0

    def _states(self) -> list[Tensor]:
        """The tensors of the optimizer's state that have their parameter's shape, in one order on all ranks."""
        states = [(parameter, self._optimizer.state.get(parameter, {})) for parameter in self._parameters.values()]
        return [
            state[key]
            for parameter, state in states
            for key in sorted(state)
            if isinstance(state[key], Tensor) and state[key].is_floating_point() and state[key].shape == parameter.shape
        ]

    def _average(self, parameters: Mapping[str, Tensor], states: Sequence[Tensor]) -> None:
        """Collective: make each tensor the mean over ranks, weighted by their samples, in place."""
        total = float(self._collectives.allreduce_sum(torch.tensor([float(self._samples)]), "hvdtrain.local_sgd")[0])
        weight = self._samples / total if total else 1.0 / self._collectives.topology.size
        tensors = [tensor.data for tensor in parameters.values()] + list(states)
        torch._foreach_mul_(tensors, weight)
        self._averaging.reduce(tensors)

    def _move(self, name: str, parameter: Parameter) -> None:
        """One step of the outer optimizer, from the last average towards this one."""
        anchor, move = self._anchors[name], self._moves[name]
        gradient = anchor - parameter
        move.mul_(self._momentum).add_(gradient)
        direction = gradient.add_(move, alpha=self._momentum) if self._nesterov else move
        parameter.copy_(anchor.sub(direction, alpha=self._outer_lr))

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Collective: inside, parameters are the mean over ranks, for evaluation and saving; then the rank's own."""
        if not self._made:
            yield
            return
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        with torch.no_grad():
            self._average(self._parameters, [])
        self._own = own
        try:
            yield
        finally:
            self._own = {}
            self._install(own)

    @torch.no_grad()
    def _install(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)

    _own: Mapping[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """The last averages, the outer momentum and the steps made since."""
        outer = {} if self._is_plain else {"anchors": dict(self._anchors), "moves": dict(self._moves)}
        return {"local_steps_made": self._made, **outer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        self._made = int(state.get("local_steps_made", 0))
        anchors = state.get("anchors") or {name: p.detach() for name, p in self._parameters.items()}
        moves = state.get("moves", {})
        for name, anchor in self._anchors.items():
            anchor.copy_(anchors.get(name, anchor))
            self._moves[name].copy_(moves.get(name, self._moves[name]))

    def rank_state(self) -> dict[str, Any]:
        """Between two averages, this rank's own parameters and optimizer; nothing where all ranks are equal."""
        if not self._made:
            return {}
        own = self._own or {name: parameter.detach() for name, parameter in self._parameters.items()}
        return {"parameters": dict(own), "optimizer": self._optimizer.state_dict(), "samples": self._samples}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Continue with this rank's own; after a change of size, from the saved mean."""
        if not state:
            self._made, self._samples = 0, 0
            return
        self._install(state["parameters"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._samples = int(state["samples"])

    def close(self) -> None:
        """Collective, when steps were made since the last average: average, and forget the parameters."""
        self.settle()
        self._parameters, self._anchors, self._moves = {}, {}, {}
