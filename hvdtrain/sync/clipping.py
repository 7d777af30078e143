"""Limits on the averaged gradient; the norm is that of one process on the joined batch, and so is the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_, clip_grad_value_


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """What to limit: the 2-norm over all gradients together, the magnitude of each element, or neither."""

    norm: float | None = None
    value: float | None = None

    def apply(self, parameters: Sequence[Parameter]) -> float | None:
        """Clip the gradients in place.

        Returns:
            The 2-norm before clipping; None when it was not needed.
        """
        norm = None
        if self.norm is not None:
            norm = float(clip_grad_norm_(parameters, self.norm))
        if self.value is not None:
            clip_grad_value_(parameters, self.value)
        return norm
