"""The step that all synchronous strategies share: accumulate, exchange, agree, average, clip, update.

The gradient that the optimizer sees is that of the mean loss over the *global* batch: each microbatch's mean is
weighted by its number of samples, so ranks may hold different numbers of them, or none. The sum over ranks is divided
by the number of samples that the signal reports; where the loader knew that number before, backward was scaled by it
already and no further pass over the gradients is made.

    sync = SynchronousStep(run.collectives, model, optimizer, exchange, metrics=("accuracy",))
    sync.prepare()
    result = sync.step(loss, batch, metrics={"accuracy": accuracy})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hvdtrain.collectives import Collectives
from hvdtrain.errors import UsageError
from hvdtrain.sync.clipping import Clipping
from hvdtrain.sync.contract import Exchange, GlobalBatch, StepResult, trainable
from hvdtrain.sync.replicas import broadcast_replica, compare_replicas
from hvdtrain.sync.signal import FIELDS, SignalLayout, SignalTable


class SteppingExchange(Exchange, Protocol):
    """An exchange that also runs the optimizer's step, as Horovod's does."""

    def step(self) -> None:
        """Update the parameters from their gradients, which are final."""


class SynchronousStep:
    """One model, one optimizer, one exchange; see `hvdtrain.sync.contract.GradientSync`.

    Args:
        collectives: for preparation only; steps use the exchange.
        model: its trainable parameters that the optimizer holds are exchanged.
        optimizer: any `torch.optim.Optimizer` whose step needs no closure.
        exchange: the strategy.
        metrics: names of the metrics that steps report, the same on all ranks.
        clipping: limits on the averaged gradient.
    """

    def __init__(
        self,
        collectives: Collectives,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: SteppingExchange,
        *,
        metrics: Sequence[str] = (),
        clipping: Clipping | None = None,
    ) -> None:
        _refuse(model, optimizer)
        self.model, self.optimizer = model, optimizer
        self._collectives, self._exchange = collectives, exchange
        self._clipping = clipping or Clipping()
        self.metrics = tuple(metrics)
        self._layout = SignalLayout(size=collectives.topology.size, metrics=self.metrics)
        self._watched: list[Parameter] = []
        self._steps = 0
        self._expected = 1.0  # samples over all ranks; by it the losses of this step are divided, on all ranks alike
        self._begin()

    def _begin(self) -> None:
        self._samples, self._loss, self._microbatches = 0, 0.0, 0
        self._sums = dict.fromkeys(self.metrics, 0.0)

    def prepare(self) -> None:
        """Collective: see `GradientSync.prepare`."""
        broadcast_replica(self.model, self.optimizer, self._collectives)
        compare_replicas(self.model, self.optimizer, self._collectives, when="after preparation")
        self._watch()

    def _trainable(self) -> dict[str, Parameter]:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return trainable(names, self.optimizer.param_groups)

    def _watch(self) -> None:
        parameters = self._trainable()
        self._watched = list(parameters.values())
        self._layout = SignalLayout(
            size=self._collectives.topology.size, metrics=self.metrics, parameters=len(self._watched)
        )
        self._exchange.watch(parameters, self._layout.numel)
        for parameter in self._watched:
            parameter.grad = None

    def _watch_what_changed(self) -> None:
        """Notice parameters that were frozen, unfrozen or added since the last step."""
        now = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        if len(now) != len(self._watched) or any(a is not b for a, b in zip(now, self._watched, strict=True)):
            self._watch()

    def backward(
        self,
        loss: Tensor,
        samples: int,
        *,
        global_samples: int | None = None,
        last: bool = True,
        metrics: Mapping[str, Tensor | float] | None = None,
    ) -> None:
        """Add the gradient of one microbatch.

        Args:
            loss: mean over the microbatch's samples, zero-dimensional; not looked at when there are none.
            samples: in the microbatch.
            global_samples: in the whole step over all ranks, the same on all ranks, where it is known before.
            last: no further microbatch follows in this step on this rank.
            metrics: means over the microbatch's samples, by name.
        """
        if not self._microbatches:
            self._open(global_samples)
        self._microbatches += 1
        if samples == 0:
            return
        self._exchange.arm(last=last)
        (loss * (samples / self._expected)).backward()  # type: ignore[no-untyped-call]
        self._samples += samples
        self._loss += float(loss.detach()) * samples
        for name, value in (metrics or {}).items():
            self._sums[name] += float(value) * samples

    def _open(self, global_samples: int | None) -> None:
        self._watch_what_changed()
        if global_samples:
            self._expected = float(global_samples)

    def step(
        self,
        loss: Tensor,
        batch: GlobalBatch,
        *,
        metrics: Mapping[str, Tensor | float] | None = None,
        stop: bool = False,
    ) -> StepResult:
        """Collective: backward, exchange, update and commit for one batch: the whole step of a loop of your own."""
        self.backward(loss, batch.samples, global_samples=batch.global_samples, metrics=metrics)
        result = self.update(global_samples=batch.global_samples, stop=stop)
        if result.committed:
            batch.commit()
        return result

    def update(self, *, global_samples: int | None = None, stop: bool = False, has_data: bool = True) -> StepResult:
        """Collective: see `GradientSync.update`.

        Args:
            global_samples: as in `backward`, for a rank that had no microbatch.
            stop: this rank asks to stop after this step.
            has_data: this rank's loader is not exhausted.

        Raises:
            StepMismatch: ranks are at different steps; on every rank.
        """
        if not self._microbatches:
            self._open(global_samples)
        table = self._exchange_with_signal(stop=stop, has_data=has_data)
        table.check_step()
        samples = int(table.total("samples"))
        norm = self._apply(samples, table) if samples else None
        for parameter in self._watched:
            parameter.grad = None
        self._begin()
        return self._result(table, samples, norm)

    def _exchange_with_signal(self, *, stop: bool, has_data: bool) -> SignalTable:
        row = dict.fromkeys(FIELDS, 0.0) | self._sums
        row |= {"step": self._steps, "samples": self._samples, "loss": self._loss, "has_data": has_data, "stop": stop}
        used = [parameter.grad is not None for parameter in self._watched]
        signal = self._layout.encode(self._collectives.topology.rank, list(row.values()), used)
        return self._layout.decode(self._exchange.finish(signal))

    def _apply(self, samples: int, table: SignalTable) -> float | None:
        """Average, leave alone what no rank used, clip, and step; the 2-norm before clipping when it was needed."""
        self._steps += 1
        for parameter, users in zip(self._watched, table.users, strict=True):
            if not users:
                parameter.grad = None
        if samples != self._expected:
            torch._foreach_mul_([p.grad for p in self._watched if p.grad is not None], self._expected / samples)
            self._expected = float(samples)
        norm = self._clipping.apply(self._watched)
        self._exchange.step()
        return norm

    def _result(self, table: SignalTable, samples: int, norm: float | None) -> StepResult:
        count = samples or float("nan")
        return StepResult(
            committed=samples > 0,
            stop=table.any("stop"),
            samples=samples,
            loss=table.total("loss") / count,
            metrics={name: table.total(name) / count for name in self.metrics},
            gradient_norm=norm,
        )

    def state_dict(self) -> dict[str, Any]:
        """The number of steps made."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after that many steps."""
        self._steps = int(state["steps"])


def _refuse(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what cannot be right, before anything is exchanged.

    Raises:
        UsageError: a sparse embedding, or an optimizer whose step needs a closure.
    """
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise UsageError(
                f"exchange the gradients of {name or type(module).__name__}",
                found="it makes sparse gradients (sparse=True), which are not exchanged yet",
                remedy="build it with sparse=False",
            )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "train with LBFGS on several ranks",
            found="its step calls the loss again and again through a closure, which no exchange can follow",
            remedy="take another optimizer, such as torch.optim.AdamW",
        )
