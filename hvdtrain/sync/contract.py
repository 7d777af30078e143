"""What a trainer needs from the network, and what a strategy has to give.

A trainer knows `GradientSync` alone: it never asks who communicates, or how. Every method here that says *Collective:*
is called by all ranks for each step, also by a rank that has no samples left.

    sync.prepare()                                           # everyone starts from root's values
    for data, samples in batch.split(microbatches):
        loss, metrics = loss_function(model, data)           # means over the local samples
        sync.backward(loss, samples, global_samples=batch.global_samples, metrics=metrics)
    result = sync.update(stop=stop_was_requested)              # one decision, the same on all ranks
    if result.committed:
        batch.commit()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor
from torch.nn import Parameter


@runtime_checkable
class Stateful(Protocol):
    """Something that a checkpoint can hold: its state is tensors and JSON values only."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as nested dicts and lists of tensors and JSON values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""


class GlobalBatch(Protocol):
    """What a step must know of a batch: `hvdtrain.data` gives these."""

    @property
    def samples(self) -> int:
        """Samples in this rank's share."""

    @property
    def global_samples(self) -> int:
        """Samples in the whole batch, over all ranks."""

    def commit(self) -> None:
        """The update that used this batch was made."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What all ranks know, alike, after a step.

    Attributes:
        committed: the optimizer made an update; false when no rank had a sample.
        stop: at least one rank asked to stop after this step.
        samples: samples over all ranks.
        loss: mean over those samples; nan when there were none.
        metrics: means over those samples, by name.
        gradient_norm: 2-norm of the averaged gradient before clipping; None unless it was needed.
        has_data: at least one rank's loader is not exhausted.
        repeat: replicas differed and were repaired; no update was made, and the same batch is to be used again.
        nonfinite: the ranks because of which the step was left out; all of them where it is the averaged gradient that
            is infinite or not a number.
        times: seconds of each rank in each of `hvdtrain.phases.PHASES` since its last signal: ``(size, phases)``.
        overflowed: the batch counts as used, but fp16 gradients overflowed and the parameters were left alone.
    """

    committed: bool
    stop: bool
    samples: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    gradient_norm: float | None = None
    has_data: bool = True
    repeat: bool = False
    nonfinite: tuple[int, ...] = ()
    times: tuple[tuple[float, ...], ...] = ()
    overflowed: bool = False


class GradientSync(Stateful, Protocol):
    """Everything the trainer needs to know of the network."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that travel with each step, the same on all ranks."""

    def prepare(self) -> None:
        """Collective: give every rank root's parameters, buffers and optimizer state, and prove it by a digest."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the forward pass and the loss are to be computed."""

    def backward(
        self,
        loss: Tensor,
        samples: int,
        *,
        global_samples: int | None = None,
        last: bool = True,
        metrics: Mapping[str, Tensor | float] | None = None,
    ) -> None:
        """Add the gradient of one microbatch; `last` starts the exchange while backward goes on.

        To be called also for a microbatch without samples, where other ranks may have some in theirs.
        """

    def update(self, *, global_samples: int | None = None, stop: bool = False, has_data: bool = True) -> StepResult:
        """Collective: finish the exchange, agree on what to do, clip, and update the parameters.

        A rank whose loader is exhausted says so by `has_data`, until no rank has any; see `hvdtrain.sync.exhaustion`.
        """

    def settled(self) -> AbstractContextManager[None]:
        """Collective: inside this context the model is the same on all ranks, for evaluation and saving."""

    def settle(self) -> None:
        """Collective: make the model the same on all ranks for good, at the end of training."""

    def rank_state(self) -> dict[str, Any]:
        """What this rank alone holds, such as its error feedback: tensors and JSON values."""

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Continue from this rank's own state; None where the number of ranks changed, and no rank has one."""

    def close(self) -> None:
        """Collective: let go of hooks and memory; the model is an ordinary one again."""


Reduction: TypeAlias = Literal["mean", "sum", "local"]


class Exchange(Protocol):
    """How the gradients of a step become their sums over all ranks; a new strategy is one class of this kind.

    Attributes:
        reduction: what the optimizer is to see: the `mean` over the samples of all ranks, their `sum`, or what
            `finish` made of the ranks' `local` means.
        equal_gradients: whether `finish` gives all ranks the same gradients.
        replicated: whether all ranks hold the same parameters and optimizer state after each step.
        lockstep: whether `finish` shows every rank all signals of the same step.
        flat: after `finish`, a few tensors that hold the gradients of all watched parameters, and zeros besides. None:
            there is nothing but the gradients themselves.
        flat_norm: the 2-norm over all of those, which the exchange took while it had them at hand; None: not known.
        norm: collective; the 2-norm over all ranks' gradients from that of this rank's. None: each rank has all.
    """

    reduction: Reduction
    equal_gradients: bool
    replicated: bool
    lockstep: bool

    @property
    def flat(self) -> Sequence[Tensor] | None:
        """See the class."""

    @property
    def flat_norm(self) -> float | None:
        """See the class."""

    @property
    def norm(self) -> Callable[[float], float] | None:
        """See the class."""

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """Collective: from now on exchange these parameters' gradients, and a signal of so many fp32 numbers."""

    def arm(self, *, last: bool) -> None:
        """Before the backward pass of a microbatch: whether gradients may be sent as they become ready."""

    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """Collective: wait until every watched parameter's `grad` is the sum over ranks; the sum of the signals.

        Args:
            signal: of this rank, fp32.
            samples: of this rank, in this step.

        A parameter without a gradient contributes zeros and has a gradient afterwards.
        """

    def step(self) -> None:
        """Update the parameters from their gradients, which are final."""

    def state_dict(self) -> dict[str, Any]:
        """What all ranks hold alike."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""

    def rank_state(self) -> dict[str, Any]:
        """What this rank alone holds."""

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Continue from there; None: no rank has one, because their number changed."""

    def settled(self) -> AbstractContextManager[None]:
        """Collective: inside this context the parameters are the same on all ranks."""

    def settle(self) -> None:
        """Collective: make the parameters the same on all ranks for good."""

    def close(self) -> None:
        """Collective: let go of hooks and memory."""


class Stateless:
    """The state of an exchange that has none, and whose parameters are the same on all ranks after each step."""

    equal_gradients = True
    replicated = True
    lockstep = True
    flat: Sequence[Tensor] | None = None
    flat_norm: float | None = None
    norm: Callable[[float], float] | None = None

    def settled(self) -> AbstractContextManager[None]:
        """They are the same."""
        return nullcontext()

    def settle(self) -> None:
        """They are the same."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""

    def rank_state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Nothing to do."""


def trainable(model_names: Mapping[int, str], groups: Sequence[Mapping[str, Any]]) -> dict[str, Parameter]:
    """The optimizer's parameters that require a gradient, by their name in the model (or by position)."""
    found: dict[str, Parameter] = {}
    for row, group in enumerate(groups):
        for column, parameter in enumerate(group["params"]):
            if parameter.requires_grad:
                found[model_names.get(id(parameter), f"group{row}.{column}")] = parameter
    return found
