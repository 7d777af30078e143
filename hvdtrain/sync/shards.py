"""Which rank owns which parameter, and how owned parameters and optimizer state reach the others.

Whole tensors are dealt out, the largest first, each to the server that has least, so any optimizer of torch steps them
rightly. The optimizer of every rank holds all parameters, but only the owner's has state for one.

    shards = Shards(communicator, parameters, servers=(2, 3))
    shards.owned                                               # this rank's parameters, by name
    shards.publish()                                           # everyone has the owners' values
    shards.collect_state(optimizer)                            # everyone has the owners' optimizer state

Source: Li et al., Scaling Distributed Machine Learning with the Parameter Server (2014).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from hvdtrain.statetree import DTYPES, flatten, leaves, raw_bytes, unflatten


def deal(sizes: Mapping[str, int], servers: Sequence[int]) -> dict[str, int]:
    """The owner of each tensor of so many elements: the largest first, to whoever has least; earlier servers first."""
    load = dict.fromkeys(servers, 0)
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner = min(servers, key=lambda server: (load[server], server))
        owners[name] = owner
        load[owner] += sizes[name]
    return {name: owners[name] for name in sizes}


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """The elements in one row in host memory, fp32 (fp64 when one tensor is): (numel,)."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    rows = [tensor.detach().reshape(-1).to("cpu", dtype) for tensor in tensors]
    return torch.cat(rows) if rows else torch.zeros(0)


@torch.no_grad()
def unpack(row: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a row that `pack` made into tensors of the same shapes."""
    start = 0
    for tensor in tensors:
        tensor.copy_(row[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


class Shards:
    """The division of some parameters among servers.

    Args:
        communicator: of mpi4py, over all ranks.
        parameters: by name, in the same order on all ranks.
        servers: ranks that own some.
    """

    def __init__(self, communicator: Any, parameters: Mapping[str, Parameter], servers: Sequence[int]) -> None:
        self._communicator = communicator
        self.servers = tuple(servers)
        self.owners = deal({name: p.numel() for name, p in parameters.items()}, servers)
        self._parameters = dict(parameters)
        self.owned = self.of(communicator.rank)

    def of(self, server: int) -> dict[str, Parameter]:
        """What one server owns."""
        return {name: p for name, p in self._parameters.items() if self.owners[name] == server}

    def publish(self) -> None:
        """Collective: give every rank the owners' parameters, from each server to all."""
        for server in self.servers:
            parameters = list(self.of(server).values())
            row = pack(parameters)  # the owner's values; on the others the place for them
            if row.numel():
                self._communicator.Bcast(row.numpy(), root=server)
                unpack(row, parameters)

    def collect_state(self, optimizer: torch.optim.Optimizer, source: torch.optim.Optimizer | None = None) -> None:
        """Collective: put the owners' optimizer state into every rank's optimizer.

        Args:
            optimizer: to fill.
            source: where this rank's own part is, when that is another one with the same groups; it is copied, since
                a server may go on with it while root still saves.
        """
        twins = twins_of(optimizer, source or optimizer)
        for server in self.servers:
            names = self.of(server)
            mine = {n: dict((source or optimizer).state.get(twins[p], {})) for n, p in names.items()}
            mine = copy.deepcopy(mine) if source is not None else mine
            for name, state in self._broadcast(mine, server).items():
                optimizer.state[names[name]] = state

    def _broadcast(self, tree: Any, root: int) -> Any:
        """Collective: root's tree on every rank, as JSON and bytes."""
        is_root = self._communicator.rank == root
        flat = flatten(tree) if is_root else None
        skeleton = json.loads(self._broadcast_bytes(json.dumps(flat.skeleton).encode() if flat else b"", root))
        tensors = flat.tensors if flat else {n: torch.empty(s, dtype=DTYPES[d]) for n, d, s in leaves(skeleton)}
        for tensor in tensors.values():
            row = raw_bytes(tensor)
            if row.numel():
                self._communicator.Bcast(row.numpy(), root=root)
        return tree if is_root else unflatten(skeleton, tensors)

    def _broadcast_bytes(self, data: bytes, root: int) -> bytes:
        length = np.array([len(data)], dtype=np.int64)
        self._communicator.Bcast(length, root=root)
        row = np.frombuffer(data.ljust(int(length[0])), dtype=np.uint8).copy()
        self._communicator.Bcast(row, root=root)
        return row.tobytes()


def twins_of(optimizer: torch.optim.Optimizer, other: torch.optim.Optimizer) -> dict[Tensor, Tensor]:
    """From each parameter of one optimizer to that in the same place of another."""
    rows = zip(optimizer.param_groups, other.param_groups, strict=True)
    return {a: b for group, twin in rows for a, b in zip(group["params"], twin["params"], strict=True)}
