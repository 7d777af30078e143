"""Sparse gradients of embeddings: gathered as rows from all ranks, or made dense and summed like the others.

Rows are joined in rank order and added index by index, so the sums do not depend on timing.

    parameters = sparse_parameters(model)                  # {"embedding.weight": ...}
    exchange_sparse(parameters, collectives)               # every .grad is the sum over ranks, still sparse
    densify(parameter)                                     # or: its gradients are dense from here on
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hvdtrain.collectives import Collectives


def sparse_parameters(model: nn.Module) -> dict[str, Parameter]:
    """The trainable parameters whose gradients will be sparse: weights of embeddings with `sparse=True`."""
    modules = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse]
    weights = {id(module.weight) for module in modules}
    return {name: p for name, p in model.named_parameters() if id(p) in weights and p.requires_grad}


def exchange_sparse(parameters: Mapping[str, Parameter], collectives: Collectives) -> None:
    """Collective: make each gradient the sum over ranks; it stays None where no rank has one."""
    for name, parameter in parameters.items():
        indices, values = _rows_of(parameter)
        every_index = collectives.allgather(indices, f"hvdtrain.sparse.{name}.indices")  # (rows of all ranks,)
        every_value = collectives.allgather(values, f"hvdtrain.sparse.{name}.values")  # (rows of all ranks, width)
        parameter.grad = None
        if len(every_index):
            summed = torch.sparse_coo_tensor(every_index[None], every_value, parameter.shape, check_invariants=False)
            parameter.grad = summed.coalesce()


def _rows_of(parameter: Parameter) -> tuple[Tensor, Tensor]:
    """Which rows of the gradient are there, int64 of shape (rows,), and their values, (rows, width)."""
    if parameter.grad is None:
        return torch.zeros(0, dtype=torch.int64, device=parameter.device), parameter.detach()[:0]
    gradient = parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad.to_sparse(1)
    return gradient.indices()[0], gradient.values()


def densify(parameter: Parameter) -> None:
    """From now on make each gradient of this parameter dense as soon as backward has accumulated it."""
    parameter.register_post_accumulate_grad_hook(_make_dense)  # type: ignore[no-untyped-call]


def _make_dense(parameter: Tensor) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()
