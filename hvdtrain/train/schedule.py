"""The learning rate as a pure function of the step, so that it has no state of its own and resumes by itself.

schedule = Schedule(config.schedule, total_steps=460, peaks=[0.1], size=4)
schedule.apply(optimizer, step=0)                     # sets the groups' learning rates for the coming step
schedule.describe()                                   # "cosine from 0.1 to 0 over 460 steps, ..."
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvdtrain.config import ScheduleConfig

SCALES = {"none": lambda size: 1.0, "linear": float, "sqrt": math.sqrt}


def constant(progress: float) -> float:
    """1 throughout."""
    return 1.0


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine; Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """From 1 to 0 in a straight line."""
    return 1.0 - progress


SHAPES = {"constant": constant, "cosine": cosine, "linear": linear}


@dataclass(frozen=True)
class Schedule:
    """The learning rates of an optimizer's groups.

    Attributes:
        config: shape, warm-up, end and scaling.
        total_steps: steps of the whole run.
        peaks: the groups' learning rates before scaling, as the optimizer was built.
        size: ranks, for `schedule.scale_by_size`.
    """

    config: ScheduleConfig
    total_steps: int
    peaks: Sequence[float]
    size: int = 1

    @property
    def scale(self) -> float:
        """What the peak is multiplied by; Goyal et al. 2017, https://arxiv.org/abs/1706.02677 (linear)."""
        return SCALES[self.config.scale_by_size](self.size)

    def factor(self, step: int) -> float:
        """What the scaled peak is multiplied by in the update that makes `step` updates `step + 1`."""
        warmup = self.config.warmup_steps
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, self.total_steps - warmup))
        final = 1.0 if self.config.name == "constant" else self.config.final_fraction
        return final + (1.0 - final) * SHAPES[self.config.name](progress)

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the learning rates for the coming update."""
        factor = self.scale * self.factor(step)
        for group, peak in zip(optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor

    def describe(self) -> str:
        """One line for the log: what the learning rate will be, and why."""
        peak = max(self.peaks) * self.scale
        scaled = f"{max(self.peaks):g} x {self.scale:g} ({self.config.scale_by_size} in size {self.size}) = {peak:g}"
        return (
            f"learning rate: {self.config.name}, peak {scaled}, {self.config.warmup_steps} warm-up steps, "
            f"{self.total_steps} steps"
        )
