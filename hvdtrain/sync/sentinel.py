"""The replica sentinel: every so many steps, a digest of what ranks must hold alike rides in the step signal.

A digest costs one pass over the memory of the replica and no exchange of its own. Only when ranks differ do they
exchange more: a checksum for each tensor, which names the ranks and the first tensor. Then the job ends, or the ranks
in the minority get the majority's values and the step is made again.

    sentinel = Sentinel(model, optimizer, collectives, every_steps=100, policy="fail")
    limbs = sentinel.limbs(step)                       # into the signal
    repaired = sentinel.judge(table, step)             # ReplicaMismatch on every rank, or whether to repeat the step

A checksum is the sum of a tensor's 64-bit words: it sees any change of one element, and no exchange of two words.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from hvdtrain.collectives import Collectives
from hvdtrain.errors import ReplicaMismatch
from hvdtrain.statetree import flatten
from hvdtrain.sync.normalization import local_statistics
from hvdtrain.sync.replicas import broadcast_replica, model_tensors
from hvdtrain.sync.signal import DIGEST_LIMBS, SignalTable

_LOG = logging.getLogger(__name__)
_MASK = 2**64 - 1
_NONE = (0.0,) * DIGEST_LIMBS


class Sentinel:
    """Compares this rank's replica with the others'; see the module.

    Args:
        model: parameters and buffers are compared; running statistics that see one rank's samples only are not.
        optimizer: its state and its settings are compared.
        collectives: used only where ranks differ.
        every_steps: between comparisons; None never compares.
        policy: `fail` ends the job; `repair` takes the values of the majority, or of root where there is none.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        collectives: Collectives,
        *,
        every_steps: int | None,
        policy: Literal["fail", "repair"] = "fail",
    ) -> None:
        self._model, self._optimizer, self._collectives = model, optimizer, collectives
        self._every_steps, self._policy = every_steps, policy

    def due(self, step: int) -> bool:
        """Whether replicas are compared before the update that makes `step` updates `step + 1`."""
        return bool(self._every_steps) and step > 0 and step % (self._every_steps or 1) == 0

    def limbs(self, step: int) -> tuple[float, ...]:
        """The digest of this rank's replica in 16-bit limbs; zeros when no comparison is due."""
        if not self.due(step):
            return _NONE
        digest = 0
        for value in self.checksums().values():
            digest = (digest * 6364136223846793005 + value + 1442695040888963407) & _MASK
        return tuple(float(digest >> 16 * limb & 0xFFFF) for limb in range(DIGEST_LIMBS))

    @torch.no_grad()
    def checksums(self) -> dict[str, int]:
        """One number for each parameter, buffer and tensor of the optimizer's state, and one for its settings."""
        own = {id(buffer) for buffer in local_statistics(self._model)}
        named = {f"model.{name}": tensor for name, tensor in model_tensors(self._model) if id(tensor) not in own}
        state = self._optimizer.state_dict()
        named |= {f"optimizer.{name}": tensor for name, tensor in flatten(state["state"]).tensors.items()}
        sums = {name: _words(tensor) for name, tensor in named.items()}
        settings = json.dumps(flatten(state["param_groups"]).skeleton, sort_keys=True)
        return _to_host(sums) | {"optimizer's settings": zlib.crc32(settings.encode())}

    def judge(self, table: SignalTable, step: int) -> bool:
        """Collective: whether replicas were repaired, so that the step is to be made again; silent while they agree.

        Raises:
            ReplicaMismatch: they differ, and the policy is `fail`; on every rank.
        """
        if not self.due(step) or len(set(table.digests())) == 1:
            return False
        rows: list[dict[str, int]] = self._collectives.gather_json(self.checksums(), "hvdtrain.sentinel")
        source = _majority(rows)
        odd = [rank for rank, row in enumerate(rows) if row != rows[source]]
        first = _first_difference(rows[source], rows[odd[0]]) if odd else "nothing that can be named"
        found = f"at step {step}, ranks {odd} differ from {len(rows) - len(odd)} others, first in {first}"
        if self._policy == "fail":
            raise ReplicaMismatch(
                "hold the same model and optimizer state on every rank",
                found=found,
                remedy="change the model nowhere but in the optimizer's step; --sentinel.policy repair goes on",
                agreed=True,
            ).at(odd[0] if odd else None, "")
        _LOG.warning("%s; they take the values of rank %d, and the step is made again", found, source)
        broadcast_replica(self._model, self._optimizer, self._collectives.with_root(source))
        return True


def _majority(rows: list[dict[str, int]]) -> int:
    """A rank of the largest set that is more than half; root where there is none."""
    texts = [json.dumps(row, sort_keys=True) for row in rows]
    text, count = Counter(texts).most_common(1)[0]
    return texts.index(text) if 2 * count > len(rows) else 0


def _first_difference(right: Mapping[str, int], other: Mapping[str, int]) -> str:
    return next(name for name in [*right, *other] if right.get(name) != other.get(name))


def _words(tensor: Tensor) -> Tensor:
    """The sum of the 64-bit words of a tensor, and of the bytes that are left, modulo 2**64; zero-dimensional."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    if flat.storage_offset() % 8:
        flat = flat.clone()
    total = flat[:whole].view(torch.int64).sum()
    return total + flat[whole:].sum(dtype=torch.int64) if whole < flat.numel() else total


def _to_host(sums: Mapping[str, Tensor]) -> dict[str, int]:
    """One transfer for each device."""
    values: dict[str, int] = {}
    for device in {tensor.device for tensor in sums.values()}:
        names = [name for name, tensor in sums.items() if tensor.device == device]
        stacked = torch.stack([sums[name] for name in names]).tolist()
        values |= {name: int(value) & _MASK for name, value in zip(names, stacked, strict=True)}
    return {name: values[name] for name in sums}
