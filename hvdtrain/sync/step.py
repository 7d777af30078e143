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

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hvdtrain.collectives import Collectives
from hvdtrain.phases import Phases
from hvdtrain.sync.clipping import Clipping, all_finite, scale_gradients
from hvdtrain.sync.contract import Exchange, GlobalBatch, StepResult
from hvdtrain.sync.normalization import attend, equalize_statistics
from hvdtrain.sync.precision import Precision
from hvdtrain.sync.refusals import nonfinite_loss, refuse_optimizer, refuse_sparse_clipping
from hvdtrain.sync.replicas import broadcast_replica, compare_replicas
from hvdtrain.sync.sentinel import Sentinel
from hvdtrain.sync.signal import SignalLayout, SignalTable, row
from hvdtrain.sync.sparse import exchange_sparse
from hvdtrain.sync.trained import Trained


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of an update: made (with the 2-norm before clipping, when needed), or left out and why."""

    norm: float | None = None
    overflowed: bool = False
    nonfinite: tuple[int, ...] = ()
    repaired: bool = False


class SynchronousStep:
    """One model, one optimizer, one exchange; see `hvdtrain.sync.contract.GradientSync`.

    Args:
        collectives: for preparation, for sparse gradients and for running statistics; other steps use the exchange.
        model: its trainable parameters that the optimizer holds are exchanged.
        optimizer: any `torch.optim.Optimizer` whose step needs no closure.
        exchange: the strategy.
        metrics: names of the metrics that steps report, the same on all ranks.
        clipping: limits on the averaged gradient.
        precision: of forward and backward; fp32 when None.
        overlap: send gradients while backward goes on.
        dense: make sparse gradients dense, so that they travel with the others.
        nonfinite: when a loss or gradient is infinite or not a number: raise on all ranks, or leave the step out.
        phases: is told what this rank does; its times travel with the signal.
        sentinel: compares replicas now and then; None never does.
    """

    def __init__(
        self,
        collectives: Collectives,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        *,
        metrics: Sequence[str] = (),
        clipping: Clipping | None = None,
        precision: Precision | None = None,
        overlap: bool = True,
        dense: bool = False,
        nonfinite: Literal["fail", "skip"] = "fail",
        phases: Phases | None = None,
        sentinel: Sentinel | None = None,
    ) -> None:
        refuse_optimizer(optimizer)
        self.model, self.optimizer = model, optimizer
        self._collectives, self._exchange = collectives, exchange
        self._clipping, self._overlap = clipping or Clipping(), overlap
        self._precision = precision or Precision("fp32", torch.device("cpu"))
        self._trained = Trained(model, optimizer, collectives, dense=dense)
        self._nonfinite, self._phases = nonfinite, phases or Phases()
        self._sentinel = sentinel or Sentinel(model, optimizer, collectives, every_steps=None)
        self.metrics = tuple(metrics)
        self._layout = SignalLayout(size=collectives.topology.size, metrics=self.metrics)
        self._watched: list[Parameter] = []  # those whose gradients the exchange sums: all but sparse ones
        self._steps = 0
        self._last_weight, self._weights = math.nan, torch.empty(0)  # of the last microbatch
        self._expected = 1.0  # samples over all ranks; by it the losses of this step are divided, on all ranks alike
        self._begin()

    def _begin(self) -> None:
        self._samples, self._loss, self._microbatches = 0, 0.0, 0
        self._sums = dict.fromkeys(self.metrics, 0.0)

    def prepare(self) -> None:
        """Collective: see `GradientSync.prepare`."""
        broadcast_replica(self.model, self.optimizer, self._collectives)
        compare_replicas(self.model, self.optimizer, self._collectives, when="after preparation")
        self._trained.hold_roots_values()
        self._watch()

    def _watch(self) -> None:
        """Collective: exchange the parameters that are trainable now."""
        self._trained.look()
        refuse_sparse_clipping(self._trained.sparse, self._clipping)
        self._layout = SignalLayout(
            size=self._collectives.topology.size, metrics=self.metrics, parameters=len(self._trained.dense)
        )
        self._exchange.watch(self._trained.dense, self._layout.numel)
        self._watched = list(self._trained.dense.values())

    def _watch_what_changed(self) -> None:
        """Notice parameters that were frozen, unfrozen or added since the last step."""
        if self._trained.changed():
            self._watch()

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the forward pass and the loss are to be computed.

        Parameters that were added since the last step take root's values before the first forward pass of a step.
        """
        if not self._microbatches and torch.is_grad_enabled():
            self._watch_what_changed()
        return self._precision.autocast()

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
            attend(self.model)
            return
        with self._phases.during("backward"):
            self._exchange.arm(last=last and self._overlap)
            loss.backward(self._weight(loss, samples))  # type: ignore[no-untyped-call]
        self._samples += samples
        self._loss += loss.item() * samples
        for name, value in (metrics or {}).items():
            self._sums[name] += float(value) * samples

    def _weight(self, loss: Tensor, samples: int) -> Tensor | None:
        """By what this microbatch's mean counts: the gradient of the step's loss with respect to it; None is 1."""
        weight = samples / self._expected * self._precision.scale
        if weight == 1.0:
            return None
        if self._last_weight != weight or self._weights.dtype != loss.dtype or self._weights.device != loss.device:
            self._last_weight, self._weights = weight, torch.full_like(loss, weight, requires_grad=False)
        return self._weights

    def _open(self, global_samples: int | None) -> None:
        self._watch_what_changed()
        for parameter in self._trained.all:  # another model's backward may have come by
            parameter.grad = None
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
        """Collective: backward, exchange, update and commit for one batch: the whole step of a loop of your own.

        Where the sentinel repaired replicas, the batch counts as used although no update was made.
        """
        self.backward(loss, batch.samples, global_samples=batch.global_samples, metrics=metrics)
        result = self.update(global_samples=batch.global_samples, stop=stop)
        if result.committed or result.repeat:
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
            NonFiniteLoss: a loss or gradient is infinite or not a number, and `nonfinite` is `fail`; on every rank.
            ReplicaMismatch: the sentinel saw that ranks differ, and its policy is `fail`; on every rank.
        """
        if not self._microbatches:
            self._open(global_samples)
            attend(self.model)
        with self._phases.during("exchange"):
            table = self._exchange_with_signal(stop=stop, has_data=has_data)
        table.check_step()
        samples = int(table.total("samples"))
        with self._phases.during("update"):
            repaired = self._sentinel.judge(table, self._steps)
            outcome = self._apply(samples, table) if samples and not repaired else Outcome(repaired=repaired)
        for parameter in self._trained.all:
            parameter.grad = None
        self._begin()
        self._phases.step = self._steps
        return self._result(table, samples, outcome)

    def _exchange_with_signal(self, *, stop: bool, has_data: bool) -> SignalTable:
        own = row(
            step=self._steps,
            samples=self._samples,
            loss=self._loss,
            has_data=has_data,
            stop=stop,
            nonfinite=not math.isfinite(self._loss) or not self._are_finite(),
            digest=self._sentinel.limbs(self._steps),
            times=self._phases.take_times(),
        )
        used = [parameter.grad is not None for parameter in self._watched]
        signal = self._layout.encode(self._collectives.topology.rank, [*own, *self._sums.values()], used)
        if self._exchange.reduction == "local" and self._samples:  # this rank's own mean
            scale_gradients(self._own_gradients(), self._expected / self._samples)
        table = self._layout.decode(self._exchange.finish(signal, self._samples))
        exchange_sparse(self._trained.sparse, self._collectives)
        return table

    def _apply(self, samples: int, table: SignalTable) -> Outcome:
        """Average, leave alone what no rank used, judge, clip, and step."""
        self._steps += 1
        for parameter, users in zip(self._watched, table.users, strict=True):
            if not users:
                parameter.grad = None
        gradients = self._trained.gradients(self._exchange.flat)
        factor = self._factor(samples)
        self._expected = float(samples)
        odd = table.ranks("nonfinite")
        judged = self._exchange.equal_gradients or self._clipping.norm is not None
        norm = self._trained.norm(gradients, self._exchange.flat_norm) if judged else 0.0
        finite = not self._exchange.equal_gradients or all_finite(gradients, norm)
        if self._precision.judge(finite=finite or bool(odd)):
            if odd or not finite:
                return self._leave_out(odd)
            limited = self._average(gradients, norm, factor)
            self._exchange.step()
            return Outcome(norm=limited)
        return Outcome(overflowed=True)

    def _average(self, gradients: Sequence[Tensor], norm: float, factor: float) -> float | None:
        """Multiply and clip, in one pass at most; the 2-norm before clipping, where that is needed."""
        averaged = None
        if self._clipping.norm is not None:
            averaged = norm * factor if self._exchange.norm is None else self._exchange.norm(norm * factor)
            factor *= self._clipping.factor(averaged)
        scale_gradients(gradients, factor)
        self._clipping.limit_values(gradients)
        return averaged

    def _own_gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._watched if parameter.grad is not None]

    def _are_finite(self) -> bool:
        """Whether this rank's gradients are, to be told to the others where the exchange does not show them."""
        return self._exchange.equal_gradients or all_finite(self._own_gradients())

    def _factor(self, samples: int) -> float:
        """By what the exchanged gradients are to be multiplied."""
        means = {"mean": self._expected / samples, "sum": self._expected, "local": 1.0}
        return means[self._exchange.reduction] / self._precision.scale

    def _leave_out(self, odd: tuple[int, ...]) -> Outcome:
        """Make no update, all ranks alike; NonFiniteLoss when that is to be the end."""
        if self._nonfinite == "skip" and self._exchange.lockstep:
            return Outcome(nonfinite=odd or tuple(range(self._collectives.topology.size)))
        raise nonfinite_loss(self._steps, odd, agreed=self._exchange.lockstep)

    def _result(self, table: SignalTable, samples: int, outcome: Outcome) -> StepResult:
        count = samples or float("nan")
        return StepResult(
            committed=samples > 0 and not outcome.repaired,
            repeat=outcome.repaired,
            stop=table.any("stop"),
            samples=samples,
            loss=table.total("loss") / count,
            metrics={name: table.total(name) / count for name in self.metrics},
            gradient_norm=outcome.norm,
            overflowed=outcome.overflowed,
            nonfinite=outcome.nonfinite,
            has_data=table.any("has_data"),
            times=table.times(),
        )

    def settled(self) -> AbstractContextManager[None]:
        """Collective: inside this context the model is the same on all ranks.

        The running statistics of a BatchNorm that sees its own rank's samples only are averaged for good.
        """
        equalize_statistics(self.model, self._collectives)
        return self._exchange.settled()

    def settle(self) -> None:
        """Collective: make the model the same on all ranks for good, at the end of training."""
        equalize_statistics(self.model, self._collectives)
        self._exchange.settle()

    def state_dict(self) -> dict[str, Any]:
        """The number of steps made, the scale of losses, and what the exchange keeps on all ranks alike."""
        own = {"steps": self._steps, "expected": self._expected, "precision": self._precision.state_dict()}
        return own | self._exchange.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after that many steps."""
        self._steps = int(state["steps"])
        self._expected = float(state.get("expected", self._expected))  # it divides losses: its rounding is in the bits
        if "precision" in state:
            self._precision.load_state_dict(state["precision"])
        self._exchange.load_state_dict(state)

    def rank_state(self) -> dict[str, Any]:
        """What this rank's exchange alone holds."""
        return self._exchange.rank_state()

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Continue from it; None where no rank has one."""
        self._exchange.load_rank_state(state)

    def close(self) -> None:
        """Collective: let go of hooks and memory."""
        self._exchange.close()
