"""A copy of the state that the steps can leave behind, in host memory that is used again for the next one.

    copier = HostCopier(threads=torch.get_num_threads())
    still = copier.copy({"model": flatten(model.state_dict())})    # the steps wait for this alone
    ...                                                            # the model moves on; `still` does not
    still = copier.copy(...)                                       # the same memory; the former copy must be done with

The first copy also pays for the memory itself; the next ones cost what copying costs. From a GPU the copies go through
pinned memory, all in flight at once. In host memory, a few threads take pieces from one list and meet once at its end:
torch's own copies meet after each tensor, which takes ten times as long on cores that have other work as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hvdtrain.statetree import Flat, raw_bytes

Bytes: TypeAlias = Any  # a numpy array of uint8: (nbytes,)

PIECE_BYTES = 8 << 20
MOST_THREADS = 4  # by then a copy waits for memory, not for cores


class HostCopier:
    """Buffers in host memory, one for each tensor of the state, and the copying into them.

    Args:
        threads: how many cores may copy.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = min(threads, MOST_THREADS)
        self._buffers: dict[tuple[str, str], Tensor] = {}

    def copy(self, entries: Mapping[str, Flat]) -> dict[str, Flat]:
        """The same entries with their tensors copied, all of them complete on return.

        The tensors that an earlier call returned are overwritten; buffers that are no longer needed are let go.
        """
        former, self._buffers = self._buffers, {}
        pairs, copied = [], {}
        for entry, flat in entries.items():
            tensors = {name: self._buffer(former, (entry, name), tensor) for name, tensor in flat.tensors.items()}
            copied[entry] = Flat(flat.skeleton, tensors)
            pairs += [(tensors[name], tensor) for name, tensor in flat.tensors.items()]
        self._fill(pairs)
        return copied

    def _buffer(self, former: Mapping[tuple[str, str], Tensor], key: tuple[str, str], tensor: Tensor) -> Tensor:
        buffer = former.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._buffers[key] = buffer
        return buffer

    def _fill(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Copy the second of each pair into the first."""
        plain = [(to, of) for to, of in pairs if _is_plain(of)]
        for to, of in pairs:
            if not _is_plain(of):
                to.copy_(of, non_blocking=of.is_cuda)
        with ThreadPoolExecutor(self._threads, "hvdtrain-copy") as pool:
            list(pool.map(_copy_piece, _pieces(plain)))
        if any(of.is_cuda for _, of in pairs):
            torch.cuda.synchronize()


def _is_plain(tensor: Tensor) -> bool:
    """Whether the elements lie in host memory as they will in the buffer."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _pieces(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Bytes, Bytes]]:
    for to, of in pairs:
        target, source = raw_bytes(to).numpy(), raw_bytes(of).numpy()
        for start in range(0, len(source), PIECE_BYTES):
            yield target[start : start + PIECE_BYTES], source[start : start + PIECE_BYTES]


def _copy_piece(piece: tuple[Bytes, Bytes]) -> None:
    target, source = piece
    target[:] = source  # numpy lets other threads run meanwhile
