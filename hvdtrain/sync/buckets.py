"""Fixed groups of gradients that are exchanged together.

Groups are made once, from the order of the parameters alone, so that neither timing nor Horovod's fusion decides which
numbers are added in which order. They go from the last parameter to the first, the order in which backward makes them
ready, and hold one dtype and device each, because fusion needs that.

    groups = buckets(list(model.parameters()), bucket_bytes=8 * 2**20)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

P = TypeVar("P", bound=Tensor)


def buckets(parameters: Sequence[P], bucket_bytes: int) -> list[list[P]]:
    """Cut `parameters`, from the last to the first, into groups of about `bucket_bytes`.

    A group is closed when it has reached `bucket_bytes`, or when the next parameter has another dtype or device.
    """
    groups: list[list[P]] = []
    filled = 0
    for parameter in reversed(parameters):
        fits = groups and filled < bucket_bytes and _kind(groups[-1][-1]) == _kind(parameter)
        if not fits:
            groups.append([])
            filled = 0
        groups[-1].append(parameter)
        filled += parameter.numel() * parameter.element_size()
    return groups


def _kind(tensor: Tensor) -> tuple[object, object]:
    return tensor.dtype, tensor.device
