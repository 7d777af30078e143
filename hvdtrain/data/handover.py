"""How a batch comes from a worker to its rank: what is small by value, what is large through shared memory.

torch shares the memory of every tensor, however small: the rank asks a thread of the worker for it, which waits for
the interpreter while the worker decodes the next batch. That takes a millisecond; a few bytes in the pipe take none.

    DataLoader(dataset, batch_size=None, num_workers=2, collate_fn=Handover)      # the rank gets what was handed over
"""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

SMALL_BYTES = 2**15  # a pipe holds 64 KiB


def as_it_is(value: Any) -> Any:
    """The value, where there is no worker."""
    return value


class Handover:
    """A value that is pickled as itself, with its small tensors by value.

    Args:
        value: what the rank is to get.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """By its own pickle."""
        return pickle.loads, (bytes(_Pickler.dumps(self._value)),)


class _Pickler(ForkingPickler):
    """That of multiprocessing, by which torch shares memory, but for small tensors."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and _is_small(value):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def _is_small(tensor: Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad:
        return False
    return (
        tensor.nbytes <= SMALL_BYTES and tensor.dtype != torch.bfloat16 and not tensor.is_conj() and not tensor.is_neg()
    )
