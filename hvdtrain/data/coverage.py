"""Whether what all ranks and workers read of a source is, together, all of it and nothing twice.

Each worker sums a 64-bit hash over what it kept and over what there was to keep. Sums do not depend on the order and,
unlike an exclusive or, notice repetitions; equal sums of different data have a chance of 2**-64.

    receipt = Receipt()
    receipt.whole.add(fingerprint(sample))             # for everything that the source gave
    receipt.kept.add(fingerprint(sample))              # for what this worker kept of it
    check_coverage(collectives, [receipt, ...])        # Collective: raises CoverageError on every rank, or nothing
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hvdtrain.collectives import Collectives, Json
from hvdtrain.errors import CoverageError

_MODULUS = 2**64


@dataclass
class Digest:
    """A multiset of fingerprints, summed up."""

    count: int = 0
    total: int = 0

    def add(self, fingerprint: int) -> None:
        """Take in one more."""
        self.count += 1
        self.total = (self.total + fingerprint) % _MODULUS

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.count + other.count, (self.total + other.total) % _MODULUS)


@dataclass
class Receipt:
    """What one worker kept of a source, and what there was."""

    kept: Digest = field(default_factory=Digest)
    whole: Digest = field(default_factory=Digest)


def fingerprint(value: Any) -> int:
    """A hash of a sample's contents, below 2**64: of tensors, arrays, numbers, text, and structures of them.

    Raises:
        TypeError: something in it has no contents that could be hashed.
    """
    digest = hashlib.blake2b(digest_size=8)
    _feed(digest, value)
    return int.from_bytes(digest.digest(), "little")


def _feed(digest: hashlib.blake2b, value: Any) -> None:
    """Add a value's kind, extent and contents, so that different structures differ."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray | np.generic) and not np.asarray(value).dtype.hasobject:
        digest.update(f"array {value.dtype} {value.shape};".encode())
        digest.update(np.asarray(value).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)};".encode())
        for key, item in value.items():
            _feed(digest, key)
            _feed(digest, item)
    elif isinstance(value, list | tuple):
        digest.update(f"sequence {len(value)};".encode())
        for item in value:
            _feed(digest, item)
    elif isinstance(value, bytes | bytearray):
        digest.update(f"bytes {len(value)};".encode() + value)
    elif isinstance(value, str | bool | int | float | None):
        text = repr(value).encode()
        digest.update(f"{type(value).__name__} {len(text)};".encode() + text)
    else:
        raise TypeError(f"a {type(value).__name__} has no contents that hvdtrain could compare; give `key`")


def check_coverage(collectives: Collectives, receipts: Sequence[Receipt]) -> None:
    """Collective: compare what all workers of all ranks kept with what there was.

    Raises:
        CoverageError: on every rank, where the two differ or workers saw different sources.
    """
    kept = sum((receipt.kept for receipt in receipts), Digest())
    wholes = sorted({(receipt.whole.count, receipt.whole.total) for receipt in receipts})
    mine: Json = [[kept.count, str(kept.total)], [[count, str(total)] for count, total in wholes]]
    everyone = collectives.gather_json(mine, "hvdtrain.data.coverage")
    seen = {(count, int(total)) for _, wholes in everyone for count, total in wholes}
    used = sum((Digest(count, int(total)) for (count, total), _ in everyone), Digest())
    if len(seen) > 1:
        counts = sorted({count for count, _ in seen})
        raise CoverageError(
            "divide a source among ranks and workers",
            found=f"they do not see the same source: {_counts(counts)}",
            remedy="give every worker the same samples in the same order (seed what shuffles them)",
            agreed=True,
        )
    (whole,) = seen or {(0, 0)}
    if (used.count, used.total) != whole:
        raise CoverageError(
            "read each sample of a source once per epoch",
            found=f"{used.count} samples were read of {whole[0]}" + _same_count(used.count, whole[0]),
            remedy="let the source give the same samples in the same order to every worker, and divide nothing itself",
            agreed=True,
        )


def _counts(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return f"{counts[0]} samples each, of different contents or order"
    return f"between {counts[0]} and {counts[-1]} samples"


def _same_count(read: int, there: int) -> str:
    return ": as many as there are, so some twice and others not at all" if read == there else ""
