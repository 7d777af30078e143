"""Precision of forward and backward: autocast, and the scaling of losses that fp16 needs.

Parameters, gradients and what is exchanged stay fp32. A gradient that overflowed on one rank makes the sum over ranks
infinite or not a number on all of them, so all ranks judge the same bits, and skip the same updates.

    precision = Precision("fp16", torch.device("cuda"))
    with precision.autocast():
        loss = loss_function(model(x), y)
    (loss * precision.scale).backward()                    # exchanged, then divided by the same scale
    if precision.judge(finite=all_finite(gradients)):      # the update may be made
        optimizer.step()

Source: Micikevicius et al., Mixed Precision Training (2018), section 3.2; constants as in torch.amp.GradScaler.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import torch

PrecisionName: TypeAlias = Literal["fp32", "bf16", "fp16"]
FIRST_SCALE = 2.0**16
GROWTH_STEPS = 2000  # without an overflow, after which the scale is doubled
SMALLEST_SCALE = 2.0**-14
LARGEST_SCALE = 2.0**32


class Precision:
    """One of fp32, bf16 (autocast) and fp16 (autocast and a dynamic scale).

    Args:
        name: which.
        device: where the model is; autocast differs between CPU and GPU.

    Attributes:
        scale: by what losses are multiplied; 1 but for fp16.
    """

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self.name = name
        self._device = device
        self.scale = FIRST_SCALE if name == "fp16" else 1.0
        self._finite_steps = 0

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of the forward pass and the loss."""
        if self.name == "fp32":
            return nullcontext()
        dtype = torch.bfloat16 if self.name == "bf16" else torch.float16
        return torch.autocast(self._device.type, dtype=dtype)

    def judge(self, *, finite: bool) -> bool:
        """Whether an update may be made, or fp16 gradients overflowed; moves the scale. Always true but for fp16."""
        if self.name != "fp16":
            return True
        if not finite:
            self.scale, self._finite_steps = max(self.scale / 2, SMALLEST_SCALE), 0
            return False
        self._finite_steps += 1
        if self._finite_steps == GROWTH_STEPS:
            self.scale, self._finite_steps = min(self.scale * 2, LARGEST_SCALE), 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """The scale, and for how many steps it held."""
        return {"scale": self.scale, "finite_steps": self._finite_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; a state of another precision is not taken over."""
        if self.name == "fp16" and state["scale"] != 1.0:
            self.scale, self._finite_steps = float(state["scale"]), int(state["finite_steps"])
