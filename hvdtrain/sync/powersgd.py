"""PowerSGD: instead of a gradient matrix, two thin factors travel, and what they miss is kept for the next step.

A gradient of n x m numbers, r of rank, costs (n + m) r numbers on the wire. What the factors could not express stays on
its rank as an error, which is added to the rank's next gradient, so nothing is lost for good. Vectors, and matrices
that would not become at least twice as small, travel as they are, with the signal, in the first of two exchanges.

    exchange = PowerSgdExchange(optimizer, name="model", rank=4, warm_start=True, error_feedback=True, seed=0)
    exchange.finish(signal, samples)                           # every .grad is the same rank-r matrix on all ranks

Bound: with error feedback, after any number of steps the applied gradients add up to the exact ones, less the errors
still kept. Each rank makes the factors orthogonal for itself, so ranks must have processors that compute alike.

Source: Vogels, Karimireddy and Jaggi, PowerSGD (2019), algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.errors import UsageError
from hvdtrain.sync.clipping import all_finite, total_norm
from hvdtrain.sync.contract import Reduction, Stateless
from hvdtrain.sync.grouped import Group

SMALLEST_GAIN = 2  # numbers of a matrix for each number of its factors; below, it travels as it is


def is_compressed(shape: torch.Size, rank: int) -> bool:
    """Whether a gradient of this shape travels as factors."""
    if len(shape) < 2:
        return False
    rows, columns = shape[0], shape.numel() // max(shape[0], 1)
    return rows * columns >= SMALLEST_GAIN * rank * (rows + columns) > 0


def _times_thin(matrix: Tensor, factor: Tensor) -> Tensor:
    """``matrix @ factor``, as a product of transposes: for so few columns 2 to 15 times as fast (MKL)."""
    return (factor.T @ matrix.T).T.contiguous()


class PowerSgdExchange(Stateless):
    """Low-rank sums through Horovod after backward; see `hvdtrain.sync.contract.Exchange`.

    Args:
        optimizer: the model's.
        name: distinguishes several exchanges in one process.
        rank: of the factors.
        warm_start: begin each step's factor with the last one's; else with random numbers, the same on all ranks.
        error_feedback: keep what the factors missed for the next step.
        seed: of the random factors.
    """

    reduction: Reduction = "mean"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        name: str,
        rank: int,
        warm_start: bool = True,
        error_feedback: bool = True,
        seed: int = 0,
    ) -> None:
        self._optimizer, self._rank = optimizer, rank
        self._warm_start, self._error_feedback = warm_start, error_feedback
        self._first, self._second = Group(f"{name}.powersgd.p"), Group(f"{name}.powersgd.q")
        self._generator = torch.Generator().manual_seed(seed)
        self._plain: list[Parameter] = []
        self._compressed: dict[str, Parameter] = {}
        self._factors: dict[str, Tensor] = {}  # (columns, rank) each, the same on all ranks
        self._errors: dict[str, Tensor] = {}  # (rows, columns) each, this rank's own

    def watch(self, parameters: Mapping[str, Parameter], signal_numel: int) -> None:
        """From now on exchange these parameters' gradients; those that stay keep their factors and errors.

        Raises:
            UsageError: none of them would become small enough for factors to be of use.
        """
        chosen = {name: p for name, p in parameters.items() if is_compressed(p.shape, self._rank)}
        if parameters and not chosen:
            raise UsageError(
                f"compress gradients by PowerSGD of rank {self._rank}",
                found=f"no gradient of this model becomes {SMALLEST_GAIN} times as small, so it brings nothing",
                remedy="--sync.compression none" + (", or --sync.powersgd_rank 1" if self._rank > 1 else ""),
                agreed=True,
            )
        self._plain = [p for name, p in parameters.items() if name not in chosen]
        self._factors = {name: self._factors[name] for name in chosen if name in self._factors}
        self._errors = {name: self._errors[name] for name in chosen if name in self._errors}
        self._compressed = chosen

    def arm(self, *, last: bool) -> None:
        """Nothing is sent before `finish`."""

    @torch.no_grad()
    def finish(self, signal: Tensor, samples: int) -> Tensor:
        """Collective: two exchanges, of the left factors with all that is not compressed, and of the right factors."""
        for parameter in [*self._plain, *self._compressed.values()]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        summed = signal.clone()
        matrices = {name: self._matrix(name, parameter) for name, parameter in self._compressed.items()}
        left = {
            name: _times_thin(matrix, self._factor(name, matrix)) for name, matrix in matrices.items()
        }  # (rows, rank)
        self._first.reduce([*left.values(), *[p.grad for p in self._plain if p.grad is not None], summed])
        left = {name: torch.linalg.qr(factor).Q for name, factor in left.items()}
        right = {name: _times_thin(matrix.T, left[name]) for name, matrix in matrices.items()}  # (columns, rank)
        self._keep_errors(matrices, left, right)
        self._second.reduce(list(right.values()))
        for name, parameter in self._compressed.items():
            self._install(parameter, torch.mm(left[name], right[name].T, out=matrices[name]))
        self._factors = right if self._warm_start else {}
        return summed

    def _matrix(self, name: str, parameter: Parameter) -> Tensor:
        """This rank's gradient and what it owes from before, fp32: (rows, columns).

        It lies in the gradient itself where that can be: memory of that size is not to be taken anew in each step.
        """
        assert parameter.grad is not None
        matrix = parameter.grad.reshape(len(parameter), -1).float()
        return matrix.add_(self._errors[name]) if name in self._errors else matrix

    def _install(self, parameter: Parameter, matrix: Tensor) -> None:
        assert parameter.grad is not None
        if parameter.grad.data_ptr() != matrix.data_ptr():
            parameter.grad.copy_(matrix.view_as(parameter))

    def _factor(self, name: str, matrix: Tensor) -> Tensor:
        """The right factor to begin with: the last step's, unless there is none or it is no number any more."""
        factor = self._factors.get(name)
        if factor is None or not bool(torch.isfinite(factor).all()):
            drawn = torch.randn(matrix.shape[1], self._rank, generator=self._generator)
            factor = drawn.to(matrix.device)
        return factor

    def _keep_errors(self, matrices: dict[str, Tensor], left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
        """What this rank's share of the factors, still before the second sum, misses of its matrix.

        A step whose numbers are not finite will be left out, so what was owed before it still is.
        """
        factors = [*left.values(), *right.values()]
        if self._error_feedback and all_finite(factors, total_norm(factors)):
            for name, matrix in matrices.items():
                error = self._errors.setdefault(name, torch.empty_like(matrix))
                torch.addmm(matrix, left[name], right[name].T, alpha=-1.0, out=error)

    def step(self) -> None:
        """One step of the model's optimizer."""
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The factors and the generator, the same on all ranks."""
        return {"factors": dict(self._factors), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with saved factors; those of a run without compression are none."""
        devices = {name: parameter.device for name, parameter in self._compressed.items()}
        self._factors = {n: f.to(devices[n]).clone() for n, f in state.get("factors", {}).items() if n in devices}
        if "generator" in state:
            self._generator.set_state(state["generator"].cpu())

    def rank_state(self) -> dict[str, Any]:
        """This rank's errors."""
        return {"errors": dict(self._errors)}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Continue with this rank's errors; after a change of size they begin at zero."""
        errors = (state or {}).get("errors", {})
        devices = {name: parameter.device for name, parameter in self._compressed.items()}
        self._errors = {name: error.to(devices[name]).clone() for name, error in errors.items() if name in devices}

    def close(self) -> None:
        """Forget the parameters, factors and errors."""
        self._plain, self._compressed, self._factors, self._errors = [], {}, {}, {}
