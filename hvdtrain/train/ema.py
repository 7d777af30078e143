"""An exponential moving average of the parameters, which evaluations use and checkpoints hold.

Parameters are equal on all ranks after each update, so each rank averages for itself and nothing is exchanged.

    average = ParameterAverage(model, decay=0.999)
    ...                                                    # step_ended(trainer, result) after each update
    with average.applied(model):                           # the model has the average's parameters in here
        evaluate(model)

Source: Polyak and Juditsky (1992); the rising decay of the first steps as in TensorFlow's ExponentialMovingAverage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hvdtrain.sync.contract import StepResult
from hvdtrain.train.callbacks import Callback, Training


class ParameterAverage(Callback):
    """Averages over updates; parameters that are added on the way begin with their value of then.

    Args:
        model: whose parameters, already equal on all ranks, begin the average.
        decay: of the former average per update; 0 follows the parameters, near 1 is slow.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self._decay, self._updates = decay, 0
        self._averages: dict[str, Tensor] = {}
        self._add(model)

    @torch.no_grad()
    def _add(self, model: nn.Module) -> dict[str, Tensor]:
        now = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self._averages = {
            name: self._averages[name] if name in self._averages else tensor.clone() for name, tensor in now.items()
        }
        return now

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take the parameters after an update into the average."""
        now = self._add(model)
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        torch._foreach_lerp_([self._averages[name] for name in now], list(now.values()), 1 - decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged parameters, and afterwards with its own again."""
        own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        _install(model, self._averages)
        try:
            yield
        finally:
            _install(model, own)

    def step_ended(self, trainer: Training, result: StepResult) -> None:
        """Take a step's parameters in, unless the step was left out."""
        if result.committed and not result.overflowed and not result.nonfinite:
            self.update(trainer.model)

    def state_dict(self) -> dict[str, Any]:
        """The averages by parameter, and of how many updates."""
        return {"updates": self._updates, "averages": dict(self._averages)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved average; a run that had none begins one now."""
        self._updates = int(state.get("updates", 0))
        for name, average in state.get("averages", {}).items():
            if name in self._averages:
                self._averages[name].copy_(average)


@torch.no_grad()
def _install(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in values:
            parameter.copy_(values[name])
