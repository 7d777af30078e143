"""Which parameters a step trains: those that the optimizer holds and that require a gradient now.

They may change while training goes on: some are frozen, others unfrozen or added. What was added takes root's values
first.

    trained = Trained(model, optimizer, collectives, dense=False)
    if trained.changed():                                  # compares identities; cheap enough for each step
        trained.look()
        exchange.watch(trained.dense, signal_numel)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hvdtrain.collectives import Collectives
from hvdtrain.sync.clipping import total_norm
from hvdtrain.sync.contract import trainable
from hvdtrain.sync.replicas import broadcast_parameters, compare_names
from hvdtrain.sync.sparse import densify, sparse_parameters


class Trained:
    """The parameters of one model and one optimizer; see the module.

    Args:
        model: names them.
        optimizer: holds them.
        collectives: to compare names and to give root's values to new ones.
        dense: make sparse gradients dense, so that they travel with the others.

    Attributes:
        all: every one, in the optimizer's order.
        dense: those whose gradients the exchange sums, by name.
        sparse: the others, by name.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, collectives: Collectives, *, dense: bool
    ) -> None:
        self._model, self._optimizer, self._collectives = model, optimizer, collectives
        self._known: set[int] = set()  # identities of parameters that hold root's values
        self._identities: list[int] = []  # of all
        self._densified = dense
        if dense:
            for parameter in sparse_parameters(model).values():
                densify(parameter)
        self.all: list[Parameter] = []
        self.dense: dict[str, Parameter] = {}
        self.sparse: dict[str, Parameter] = {}

    def hold_roots_values(self) -> None:
        """Say that every parameter of the model has them."""
        self._known = set(map(id, self._model.parameters()))

    def changed(self) -> bool:
        """Whether others are trainable than at the last look."""
        now = [id(p) for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        return now != self._identities

    def look(self) -> None:
        """Collective: find them anew; those that were added take root's values."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        found = trainable(names, self._optimizer.param_groups)
        compare_names(list(found), self._collectives)
        added = {name: parameter for name, parameter in found.items() if id(parameter) not in self._known}
        broadcast_parameters(added, self._collectives)
        self._known.update(map(id, found.values()))
        sparse = {} if self._densified else sparse_parameters(self._model)
        self.all = list(found.values())
        self._identities = list(map(id, self.all))
        self.sparse = {name: parameter for name, parameter in found.items() if name in sparse}
        self.dense = {name: parameter for name, parameter in found.items() if name not in sparse}

    def gradients(self, flat: Sequence[Tensor] | None) -> list[Tensor]:
        """What holds all gradients, and zeros besides, for passes over them.

        Args:
            flat: tensors that hold those of all dense parameters; None: each has its own.
        """
        return _gradients(self.all) if flat is None else [*flat, *_gradients(self.sparse.values())]

    def norm(self, gradients: Sequence[Tensor], flat_norm: float | None) -> float:
        """The 2-norm of what `gradients` gave, where that of the flat tensors among them is known, or not."""
        if flat_norm is None:
            return total_norm(gradients)
        sparse = _gradients(self.sparse.values())
        return math.hypot(flat_norm, total_norm(sparse)) if sparse else flat_norm


def _gradients(parameters: Iterable[Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
