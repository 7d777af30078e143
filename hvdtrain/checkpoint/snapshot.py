"""A copy of the state that the steps can leave behind, in host memory that is used again for the next one.

    copier = HostCopier()
    still = copier.copy({"model": flatten(model.state_dict())})    # the steps wait for this alone
    ...                                                            # the model moves on; `still` does not
    still = copier.copy(...)                                       # the same memory; the former copy must be done with

The first copy also pays for the memory itself; the next ones cost what copying costs. From a GPU the copies go through
pinned memory, all in flight at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hvdtrain.statetree import Flat


class HostCopier:
    """Buffers in host memory, one for each tensor of the state, and the copying into them."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Tensor] = {}

    def copy(self, entries: Mapping[str, Flat]) -> dict[str, Flat]:
        """The same entries with their tensors copied, all of them complete on return.

        The tensors that an earlier call returned are overwritten; buffers that are no longer needed are let go.
        """
        former, self._buffers = self._buffers, {}
        copied = {entry: Flat(flat.skeleton, self._copy_all(entry, flat, former)) for entry, flat in entries.items()}
        if any(tensor.is_cuda for flat in entries.values() for tensor in flat.tensors.values()):
            torch.cuda.synchronize()
        return copied

    def _copy_all(self, entry: str, flat: Flat, former: Mapping[tuple[str, str], Tensor]) -> dict[str, Tensor]:
        for name, tensor in flat.tensors.items():
            buffer = former.get((entry, name))
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[entry, name] = buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        return {name: self._buffers[entry, name] for name in flat.tensors}
