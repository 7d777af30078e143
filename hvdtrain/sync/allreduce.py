"""The exchange of Horovod's DistributedOptimizer: ring all-reduce of fixed groups, overlapped with backward.

Horovod wraps an optimizer by building a new one of its class, which loses its state and its defaults, and exchanges
just the parameters that it saw then. So what it wraps here is a `Carrier`: an optimizer that holds the trainable
parameters and the signal. The model's optimizer stays itself, and makes the step.

    exchange = HorovodExchange(optimizer, name="model", bucket_bytes=8 * 2**20)
    exchange.watch(trainable_parameters, signal_numel=32)
    exchange.arm(last=True)
    loss.backward()                                # groups leave as they become ready
    summed = exchange.finish(signal, 16)               # every .grad is now the sum over ranks
    exchange.step()                                # the model's optimizer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.sync.buckets import buckets
from hvdtrain.sync.contract import Reduction, Stateless

_NEVER = 2**62  # backward passes until a hook sends something


class Carrier(torch.optim.Optimizer):
    """An optimizer for Horovod to wrap: it holds what is exchanged, and has no step of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, defaults={})


class Key(tuple[Parameter, ...]):
    """A group by which Horovod looks things up: it is itself and equal to no other.

    An ordinary tuple hashes all its members at each look, four times for each gradient: with 300 small parameters in a
    group that took 13 of 26 ms of a step.
    """

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Wire:
    """What travels instead of a gradient, in the form that Horovod's optimizer asks for.

    MPI has no bfloat16, so such gradients travel, and are summed, in fp32. The signal always travels as it is.

    Args:
        signal: the parameter whose gradient is the signal.
        half: send fp32 as fp16.
    """

    def __init__(self, signal: Parameter, *, half: bool) -> None:
        self._signal, self._half = signal, half

    def compress(self, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """The tensor to send, and the dtype to come back to."""
        signal = self._signal.grad
        is_signal = signal is not None and signal.data_ptr() == tensor.data_ptr()
        if tensor.dtype == torch.bfloat16:
            return tensor.float(), tensor.dtype
        if self._half and tensor.dtype == torch.float32 and not is_signal:
            return tensor.half(), tensor.dtype
        return tensor, tensor.dtype

    def decompress(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum in the gradient's dtype."""
        return tensor.to(dtype)


class HorovodExchange(Stateless):
    """The sums over ranks by `hvd.DistributedOptimizer`; see `hvdtrain.sync.contract.Exchange`.

    Args:
        optimizer: the model's optimizer; it is not changed.
        name: distinguishes several exchanges in one process.
        bucket_bytes: size of a group of gradients; None leaves grouping to Horovod's timing.
        reduction: what the optimizer is to see of the sums.
        half: send fp32 gradients as fp16. Each number is then off by at most 2**-11 of itself per addition, those
            beyond 65504 overflow, and those below 6e-8 vanish.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        name: str,
        bucket_bytes: int | None,
        reduction: Reduction = "mean",
        half: bool = False,
    ) -> None:
        self.reduction: Reduction = reduction
        self._half = half
        self._optimizer = optimizer
        self._name = name
        self._bucket_bytes = bucket_bytes
        self._wrapped: Any = None
        self._parameters: dict[str, Parameter] = {}
        self._signal = torch.nn.Parameter(torch.zeros(0))

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """Collective: wrap anew, for these parameters; what was watched before is let go."""
        import horovod.torch as hvd

        self._let_go()
        self._parameters = dict(parameters)
        self._signal = torch.nn.Parameter(torch.zeros(signal_numel))
        named = [(f"{self._name}.{key}", value) for key, value in parameters.items()]
        named.append((f"{self._name}.hvdtrain_signal", self._signal))
        carrier = Carrier([value for _, value in named])
        self._wrapped = hvd.DistributedOptimizer(
            carrier, named, op=hvd.Sum, groups=self._groups(), compression=Wire(self._signal, half=self._half)
        )
        keys = {group: Key(group) for group in self._wrapped._group_counts}
        self._wrapped._group_counts = dict.fromkeys(keys.values(), 0)
        self._wrapped._p_to_group = {p: keys[group] for p, group in self._wrapped._p_to_group.items()}
        self._wrapped.set_backward_passes_per_step(_NEVER)  # until armed: another model's backward may come by

    def _groups(self) -> list[list[Parameter]] | None:
        if self._bucket_bytes is None:
            return None
        groups = buckets(list(self._parameters.values()), self._bucket_bytes)
        last = groups[-1] if groups else []
        if last and not self._half and (last[0].dtype, last[0].device) == (self._signal.dtype, self._signal.device):
            last.append(self._signal)  # the group that is ready last anyway
        else:
            groups.append([self._signal])
        return groups

    def _let_go(self) -> None:
        """Make the hooks of an earlier wrapping harmless: they may still hang on a graph that is alive."""
        if self._wrapped is not None:
            self._wrapped.set_backward_passes_per_step(_NEVER)
            self._wrapped._grad_accs.clear()

    def arm(self, *, last: bool) -> None:
        """Let hooks send groups in the coming backward pass only if it is the last of the step."""
        self._wrapped.set_backward_passes_per_step(1 if last else _NEVER)

    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """Collective: complete the groups with zeros and the signal, and wait for all of them."""
        if not self._wrapped._grad_accs:  # alone: Horovod puts no hooks, and sums of one rank are there already
            for parameter in self._parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            return signal
        waiting = [p for p in self._parameters.values() if self._wrapped._allreduce_delay[p] != 0]
        self._wrapped.set_backward_passes_per_step(1)
        torch.autograd.backward([*waiting, self._signal], [*map(torch.zeros_like, waiting), signal])
        self._wrapped.synchronize()
        self._wrapped.set_backward_passes_per_step(_NEVER)
        summed = self._signal.grad
        assert summed is not None
        self._signal.grad = None
        return summed

    def close(self) -> None:
        """Make the hooks harmless and forget what was watched."""
        self._let_go()
        self._wrapped, self._parameters = None, {}

    def step(self) -> None:
        """One step of the model's optimizer."""
        self._optimizer.step()
