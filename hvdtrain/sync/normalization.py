"""Batch normalisation over the samples of all ranks, on any device, and running statistics that all ranks share.

A step's statistics are those of the joined batch however unevenly it is dealt out; a rank without samples takes part
with none (`attend`). Sums are exchanged in fp64: of C channels, C means and C mean squares with the number of samples.

    model = convert_sync_batchnorm(model, run.collectives)     # every BatchNorm becomes a SyncBatchNorm
    loss_function(model, data).backward()                      # gradients as of one process on the joined batch
    attend(model)                                              # on a rank without samples, instead of the two
    equalize_statistics(model, run.collectives)                # for those that stay local, before evaluation or saving

Source: Ioffe and Szegedy (2015); moments joined as in Chan, Golub and LeVeque (1979), here in double precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from hvdtrain.collectives import Collectives


class _Normalize(torch.autograd.Function):
    """Normalise with the moments of all ranks' samples; its derivative goes through those moments on all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, module: SyncBatchNorm
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        count, mean, variance = _join(*_moments(x, axes), module)
        shape = [1, -1, *[1] * (x.dim() - 2)]  # (1, channels, 1, ...)
        inverse = (variance + eps).rsqrt().to(torch.float32)
        centred = x.float() - mean.to(torch.float32).view(shape)
        normal = centred * inverse.view(shape)
        y = normal if weight is None else normal * weight.float().view(shape)
        y = y if bias is None else y + bias.float().view(shape)
        ctx.save_for_backward(normal, inverse, weight, count)
        ctx.module, ctx.axes, ctx.shape, ctx.dtype = module, axes, shape, x.dtype
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(count, mean, variance)
        return y.to(x.dtype), count, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse, weight, count = ctx.saved_tensors
        dy = gradient.float()
        sums = torch.stack(  # (2, channels)
            [dy.sum(ctx.axes, dtype=torch.float64), (dy * normal).sum(ctx.axes, dtype=torch.float64)]
        )
        dbias, dweight = sums.to(torch.float32)
        mean_dy, mean_dy_normal = (ctx.module.exchange_backward(sums) / count).to(torch.float32)
        dx = dy - mean_dy.view(ctx.shape) - normal * mean_dy_normal.view(ctx.shape)
        scale = inverse if weight is None else inverse * weight.float()
        dx = (dx * scale.view(ctx.shape)).to(ctx.dtype)
        if weight is None:
            return dx, None, None, None, None
        return dx, dweight.to(weight.dtype), dbias.to(weight.dtype) if ctx.has_bias else None, None, None


def _moments(x: Tensor, axes: list[int]) -> tuple[int, Tensor, Tensor]:
    """Elements per channel, and the means and mean squares of each channel in fp64."""
    count = x.numel() // x.shape[1]
    variance, mean = torch.var_mean(x.float(), axes, correction=0)
    mean = mean.double()
    return count, mean, variance.double() + mean * mean


def _join(count: int, mean: Tensor, square: Tensor, module: SyncBatchNorm) -> tuple[Tensor, Tensor, Tensor]:
    row = torch.cat([mean.new_tensor([count]), count * mean, count * square])  # (1 + 2 * channels,)
    total = module.exchange_forward(row)
    joined, joined_square = (total[1:] / total[0]).chunk(2)
    return total[0], joined, (joined_square - joined * joined).clamp_min(0)


class SyncBatchNorm(_BatchNorm):
    """A BatchNorm over the samples of all ranks, for inputs of shape (samples, channels, ...).

    In evaluation it is an ordinary BatchNorm. An input without samples is handed through without communication, since
    `attend` speaks for that rank.
    """

    def __init__(self, num_features: int, collectives: Collectives, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        self._collectives = collectives
        self.order = 0  # among the layers of its model, as they were used

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions (samples, channels, ...), found {x.dim()}")

    def exchange_forward(self, row: Tensor) -> Tensor:
        """Collective: the sum over ranks of (count, sums, sums of squares), fp64 of shape (1 + 2 * channels,)."""
        return self._collectives.allreduce_sum(row, "hvdtrain.batchnorm.forward")

    def exchange_backward(self, sums: Tensor) -> Tensor:
        """Collective: the sum over ranks of the gradients' sums, fp64 of shape (2, channels)."""
        return self._collectives.allreduce_sum(sums, "hvdtrain.batchnorm.backward")

    def forward(self, x: Tensor) -> Tensor:
        """Collective (in training): the normalised input, of its shape and dtype."""
        self._check_input_dim(x)
        if not (self.training or self.running_mean is None) or x.shape[0] == 0:
            return super().forward(x) if x.shape[0] else x
        y, count, mean, variance = _Normalize.apply(x, self.weight, self.bias, self.eps, self)  # type: ignore[no-untyped-call]
        self._track(float(count), mean, variance)
        return y  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, count: float, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or not self.training:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        part = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), part)

    def attend(self) -> None:
        """Collective: take part in the other ranks' forward pass with no samples."""
        device = next(iter([*self.parameters(), *self.buffers()]), torch.zeros(())).device
        total = self.exchange_forward(torch.zeros(1 + 2 * self.num_features, dtype=torch.float64, device=device))
        if total[0] > 0:
            mean, square = (total[1:] / total[0]).chunk(2)
            self._track(float(total[0]), mean, (square - mean * mean).clamp_min(0))

    def attend_backward(self) -> None:
        """Collective: take part in the other ranks' backward pass with no samples."""
        device = next(iter([*self.parameters(), *self.buffers()]), torch.zeros(())).device
        self.exchange_backward(torch.zeros(2, self.num_features, dtype=torch.float64, device=device))


def convert_sync_batchnorm(module: nn.Module, collectives: Collectives) -> nn.Module:
    """The same module with a `SyncBatchNorm` in place of every BatchNorm, which keeps its parameters and buffers.

    Layers are used in the order in which the module holds them; that order is what a rank without samples follows.
    """
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        return _converted(module, collectives)
    for name, child in module.named_children():
        setattr(module, name, convert_sync_batchnorm(child, collectives))
    return module


def _converted(old: _BatchNorm, collectives: Collectives) -> SyncBatchNorm:
    new = SyncBatchNorm(
        old.num_features,
        collectives,
        eps=old.eps,
        momentum=old.momentum,
        affine=old.affine,
        track_running_stats=old.track_running_stats,
    )
    new.training = old.training
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    for name, buffer in old.named_buffers():
        setattr(new, name, buffer)
    return new


def attend(model: nn.Module) -> None:
    """Collective: what a rank without samples does in a microbatch."""
    layers = [layer for layer in model.modules() if isinstance(layer, SyncBatchNorm) and layer.training]
    for layer in layers:
        layer.attend()
    for layer in reversed(layers):
        layer.attend_backward()


def local_statistics(model: nn.Module) -> list[Tensor]:
    """The running statistics that see this rank's samples only, and so differ between ranks."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and not isinstance(m, SyncBatchNorm)]
    buffers = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)]
    return [buffer for buffer in buffers if buffer is not None]


@torch.no_grad()
def equalize_statistics(model: nn.Module, collectives: Collectives) -> None:
    """Collective: average the running statistics over ranks.

    Statistics that are equal already keep their bits: the mean of equal fp32 numbers is exact in fp64.
    """
    buffers = local_statistics(model)
    if not buffers or collectives.topology.size == 1:
        return
    flat = torch.cat([buffer.double().reshape(-1) for buffer in buffers])  # (channels of all layers, twice,)
    mean = collectives.allreduce_sum(flat, "hvdtrain.statistics") / collectives.topology.size
    start = 0
    for buffer in buffers:
        buffer.copy_(mean[start : start + buffer.numel()].view_as(buffer))
        start += buffer.numel()
