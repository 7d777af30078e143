"""What is done to all gradients of a step at once: their norm, a factor, limits, and whether they are finite.

One pass reads the gradients: their 2-norm is finite where they are, and clips them. One more, where it is needed,
multiplies by the average's factor and the limit's together. The limits are on the averaged gradient, as in one process
on the joined batch.

    norm = total_norm(gradients)                           # of the sums over ranks
    if all_finite(gradients, norm):
        clipping = Clipping(norm=1.0)
        scale_gradients(gradients, clipping.factor(norm / samples) / samples)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_TINY = 1e-6  # as in torch.nn.utils.clip_grads_with_norm_


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """What to limit: the 2-norm over all gradients together, the magnitude of each element, or neither."""

    norm: float | None = None
    value: float | None = None

    def factor(self, norm: float) -> float:
        """By what gradients with this 2-norm over all of them are to be multiplied."""
        return 1.0 if self.norm is None else min(1.0, self.norm / (norm + _TINY))

    def limit_values(self, gradients: Sequence[Tensor]) -> None:
        """Limit each element in place."""
        if self.value is not None and gradients:
            torch._foreach_clamp_min_(list(gradients), -self.value)
            torch._foreach_clamp_max_(list(gradients), self.value)


def scale_gradients(gradients: Sequence[Tensor], factor: float) -> None:
    """Multiply in place, in one call for all dense ones."""
    if factor == 1.0:
        return
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    if dense:
        torch._foreach_mul_(dense, factor)
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.mul_(factor)


def total_norm(gradients: Sequence[Tensor]) -> float:
    """The 2-norm of all elements together; infinite or not a number where one of them is, or where squares overflow."""
    if len(gradients) == 1 and not gradients[0].is_sparse:
        wide = torch.promote_types(gradients[0].dtype, torch.float32)
        return float(torch.linalg.vector_norm(gradients[0], dtype=wide).item())
    return float(torch.linalg.vector_norm(_norms(gradients, 2.0)).item())


def all_finite(gradients: Sequence[Tensor], norm: float | None = None) -> bool:
    """Whether no element is infinite or not a number.

    Args:
        gradients: dense or sparse.
        norm: what `total_norm` says of them, where it is known. The largest magnitudes, which take torch twenty times
            as long on a CPU, are looked at only where it is not finite.
    """
    norm = total_norm(gradients) if norm is None else norm
    return math.isfinite(norm) or bool(torch.isfinite(_norms(gradients, math.inf)).all())


def _norms(gradients: Sequence[Tensor], order: float) -> Tensor:
    """Of each gradient that has elements: shape ``(n,)``, fp32 or wider, on the first one's device."""
    values = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    values = [value for value in values if value.numel()]
    if not values:
        return torch.zeros(0)
    norms = torch._foreach_norm(values, order)
    first = values[0].device
    stacked = torch.stack([norm if norm.device == first else norm.to(first) for norm in norms])
    return stacked.to(torch.promote_types(stacked.dtype, torch.float32))
