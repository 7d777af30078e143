"""Replicas: what every rank must hold alike, how it is made so, and how it is proved.

Root's values win. The optimizer's state goes first and the parameters last, so that nothing which installing a state
does can move a parameter that was already made equal; then digests are compared.

    broadcast_replica(model, optimizer, collectives)
    compare_replicas(model, optimizer, collectives, when="after preparation")       # ReplicaMismatch names the tensor
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from hvdtrain.collectives import Collectives
from hvdtrain.errors import ReplicaMismatch
from hvdtrain.statetree import broadcast_tree, digests, flatten


def model_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, each once, buffers that are not saved among them."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def broadcast_replica(model: nn.Module, optimizer: torch.optim.Optimizer, collectives: Collectives) -> None:
    """Collective: give every rank root's optimizer state, buffers and parameters."""
    if collectives.topology.size == 1:
        return
    optimizer.load_state_dict(broadcast_tree(optimizer.state_dict(), collectives))
    broadcast_parameters(dict(model_tensors(model)), collectives)


def broadcast_parameters(tensors: Mapping[str, Tensor], collectives: Collectives) -> None:
    """Collective: give these tensors root's values, in place and unseen by autograd."""
    if collectives.topology.size == 1 or not tensors:
        return
    theirs = broadcast_tree({name: tensor.detach() for name, tensor in tensors.items()}, collectives)
    for name, tensor in tensors.items():
        tensor.data.copy_(theirs[name])


def replica_digests(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """A SHA-256 for each parameter, buffer and tensor of the optimizer's state, by name."""
    state = flatten(optimizer.state_dict()["state"]).tensors
    named = {f"model.{name}": tensor for name, tensor in model_tensors(model)}
    return digests({**named, **{f"optimizer.{name}": tensor for name, tensor in state.items()}})


def compare_replicas(
    model: nn.Module, optimizer: torch.optim.Optimizer, collectives: Collectives, *, when: str
) -> None:
    """Collective: prove that every rank holds the same tensors.

    Raises:
        ReplicaMismatch: naming the ranks that differ from root, and the first tensor that does, on every rank.
    """
    rows: list[dict[str, str]] = collectives.gather_json(replica_digests(model, optimizer), "hvdtrain.replicas")
    root = rows[0]
    odd = [rank for rank, row in enumerate(rows) if row != root]
    if not odd:
        return
    other = rows[odd[0]]
    first = next(name for name in [*root, *other] if root.get(name) != other.get(name))
    raise ReplicaMismatch(
        f"hold the same model and optimizer state on every rank ({when})",
        found=f"ranks {odd} differ from rank 0, first in {first}",
        remedy="build the same model on every rank, and change it nowhere but in the optimizer's step",
        agreed=True,
    )


def compare_names(names: list[str], collectives: Collectives) -> None:
    """Collective: prove that every rank trains the same parameters, in the same order.

    Raises:
        ReplicaMismatch: naming a rank and parameters, on every rank.
    """
    rows: list[list[str]] = collectives.gather_json(names, "hvdtrain.watch")
    for rank, row in enumerate(rows):
        if row != rows[0]:
            odd = sorted(set(row) ^ set(rows[0])) or row
            raise ReplicaMismatch(
                "train the same parameters on every rank",
                found=f"rank {rank} and rank 0 do not agree on {', '.join(odd[:3])}",
                remedy="freeze, unfreeze and add parameters at the same step on every rank, in the same order",
                agreed=True,
            )
