"""Named groups of tensors that Horovod reduces in place, for exchanges that decide themselves what travels.

sums = Group("model.first", adasum=False)
sums.reduce([p, q, signal])                                # each is the sum over ranks now
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor


class Group:
    """One step's exchange of a list of tensors, always the same shapes in the same order.

    Args:
        name: of the exchange, unique in the process.
        adasum: combine by Adasum instead of summing.
    """

    def __init__(self, name: str, *, adasum: bool = False) -> None:
        self._name, self._adasum = name, adasum

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Collective: put the sum over ranks, or what Adasum makes of them, into each tensor."""
        import horovod.torch as hvd

        kinds = groupby(sorted(range(len(tensors)), key=lambda i: _kind(tensors[i])), key=lambda i: _kind(tensors[i]))
        operation = hvd.Adasum if self._adasum else hvd.Sum
        for number, (_, indices) in enumerate(kinds):
            chosen = [tensors[index] for index in indices]
            travelling = [t.float() if t.dtype == torch.bfloat16 else t.contiguous() for t in chosen]
            hvd.grouped_allreduce_(travelling, op=operation, name=f"{self._name}.{number}")
            for tensor, reduced in zip(chosen, travelling, strict=True):
                if tensor.data_ptr() != reduced.data_ptr():
                    tensor.copy_(reduced)


def _kind(tensor: Tensor) -> tuple[str, str]:
    """Tensors that can travel in one group."""
    return str(tensor.dtype), str(tensor.device)
