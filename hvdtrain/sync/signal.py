"""The step signal: a small table that travels with the gradients, from which all ranks decide alike.

The table has one row for each rank and one column for each field; a rank fills its own row and leaves zeros elsewhere,
so that the exchange, which sums, gives everyone every row. It is fp32, like the gradients with which it is fused, so
whole numbers are exact below 2**24. Behind the table lies one number for each watched parameter: how many ranks have a
gradient for it. A new field is one line in `FIELDS`.

    layout = SignalLayout(size=4, metrics=("accuracy",), parameters=12)
    table = layout.decode(exchange.finish(layout.encode(rank, row, used)))
    table.total("samples"), table.any("stop"), table.column("step")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hvdtrain.errors import StepMismatch
from hvdtrain.phases import PHASES

DIGEST_LIMBS = 4  # of 16 bits each, which fp32 holds exactly

FIELDS = (
    "step",  # number of the step this rank is at
    "samples",  # in this rank's share
    "loss",  # sum over this rank's samples
    "has_data",  # 1 when this rank has a share of this step, even an empty one of a batch that others share
    "stop",  # 1 when this rank was asked to stop
    "nonfinite",  # 1 when the loss of this rank is infinite or not a number
    *(f"digest{limb}" for limb in range(DIGEST_LIMBS)),  # of this rank's replica, when the sentinel is due
    *(f"{phase}_s" for phase in PHASES),  # time of this rank in each phase since the last signal
)
LARGEST_WHOLE = 2**24  # of fp32


def row(
    *,
    step: int,
    samples: int,
    loss: float,
    has_data: bool,
    stop: bool,
    nonfinite: bool,
    digest: Sequence[float],
    times: Sequence[float],
) -> list[float]:
    """The numbers of one rank in the order of `FIELDS`; those of the metrics follow them."""
    return [step, samples, loss, has_data, stop, nonfinite, *digest, *times]


@dataclass(frozen=True, kw_only=True)
class SignalLayout:
    """Where the numbers of a signal are: ``(size, fields + metrics)`` for the table, then ``(parameters,)``."""

    size: int
    metrics: tuple[str, ...] = ()
    parameters: int = 0

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return (*FIELDS, *self.metrics)

    @cached_property
    def numel(self) -> int:
        """How many fp32 numbers a signal has."""
        return self.size * len(self.columns) + self.parameters

    def encode(self, rank: int, row: Sequence[float], used: Sequence[bool]) -> Tensor:
        """This rank's signal: its row of the table, and for each parameter whether it has a gradient.

        Args:
            rank: whose row it is.
            row: one number for each of `columns`.
            used: one truth for each parameter.

        Returns:
            A CPU tensor of shape ``(numel,)``, fp32.
        """
        width = len(self.columns)
        values = np.zeros(self.numel, dtype=np.float32)
        values[rank * width : (rank + 1) * width] = row
        values[self.size * width :] = used
        return torch.from_numpy(values)

    def decode(self, summed: Tensor) -> SignalTable:
        """Read the exchange's sum, of shape ``(numel,)``."""
        width = len(self.columns)
        cut = self.size * width
        flat = summed.numpy().tolist()
        rows = [flat[start : start + width] for start in range(0, cut, width)]  # rows: (size, columns)
        return SignalTable(columns=self.columns, rows=rows, users=flat[cut:])


@dataclass(frozen=True, kw_only=True)
class SignalTable:
    """Every rank's row, as all ranks see it after the exchange.

    Attributes:
        columns: names of the columns.
        rows: ``(size, columns)`` numbers.
        users: for each watched parameter, how many ranks have a gradient for it.
    """

    columns: tuple[str, ...]
    rows: list[list[float]]
    users: list[float]

    def column(self, name: str) -> list[float]:
        """One field of all ranks, in rank order."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def total(self, name: str) -> float:
        """The sum of one field over ranks, in rank order and double precision."""
        return sum(self.column(name))

    def any(self, name: str) -> bool:
        """Whether any rank set this field."""
        return any(self.column(name))

    def ranks(self, name: str) -> tuple[int, ...]:
        """The ranks that set this field."""
        return tuple(rank for rank, value in enumerate(self.column(name)) if value)

    def digests(self) -> list[tuple[float, ...]]:
        """Every rank's digest, in rank order."""
        first = self.columns.index("digest0")
        return [tuple(row[first : first + DIGEST_LIMBS]) for row in self.rows]

    def times(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of each rank in each of PHASES: ``(size, phases)``."""
        first = self.columns.index(f"{PHASES[0]}_s")
        return tuple(tuple(row[first : first + len(PHASES)]) for row in self.rows)

    def check_step(self) -> None:
        """Refuse to go on when ranks are at different steps.

        Raises:
            StepMismatch: on every rank alike.
        """
        steps = [int(step) for step in self.column("step")]
        if min(steps) != max(steps):
            raise StepMismatch(
                "make the same step on every rank",
                found=", ".join(f"rank {rank} is at step {step}" for rank, step in enumerate(steps)),
                remedy="call step() the same number of times on every rank, also where a rank has no samples left",
                agreed=True,
            ).at(steps.index(min(steps)), "exchange")
