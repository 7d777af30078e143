"""What is done to all gradients of a step at once: limits, a factor, and whether they are finite.

The limits are on the averaged gradient; the norm is that of one process on the joined batch, and so is the result.

    if all_finite(gradients):
        scale_gradients(gradients, 1 / samples)
        norm = Clipping(norm=1.0).apply(parameters)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """What to limit: the 2-norm over all gradients together, the magnitude of each element, or neither."""

    norm: float | None = None
    value: float | None = None

    def apply(
        self, parameters: Sequence[Parameter], whole_norm: Callable[[float], float] | None = None
    ) -> float | None:
        """Clip the gradients in place.

        Args:
            parameters: whose gradients, where they have some.
            whole_norm: collective; from the 2-norm of what this rank has to that of all. None: it has all.

        Returns:
            The 2-norm before clipping; None when it was not needed.
        """
        norm = None
        if self.norm is not None:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norm = float(get_total_norm(gradients)) if gradients else 0.0
            norm = norm if whole_norm is None else whole_norm(norm)
            clip_grads_with_norm_(parameters, self.norm, torch.tensor(norm))
        if self.value is not None:
            clip_grad_value_(parameters, self.value)
        return norm


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


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether no element is infinite or not a number: the largest magnitudes, in one call, tell."""
    values = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    values = [value for value in values if value.numel()]
    if not values:
        return True
    largest = torch._foreach_norm(values, float("inf"))
    return bool(torch.isfinite(torch.stack([value.float() for value in largest])).all())
