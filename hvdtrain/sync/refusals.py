"""What cannot be trained on several ranks, refused before anything is exchanged, with the reason.

refuse_optimizer(optimizer)                            # UsageError for LBFGS
refuse_sparse_clipping(["embedding.weight"], clipping)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch

from hvdtrain.errors import UsageError
from hvdtrain.sync.clipping import Clipping


def refuse_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose step must be given a closure.

    Raises:
        UsageError: it is one.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"train with {type(optimizer).__name__} on several ranks",
            found="its step calls the loss again and again through a closure, which no exchange can follow",
            remedy="take another optimizer, such as torch.optim.AdamW",
        )


def refuse_sparse_clipping(sparse: Iterable[str], clipping: Clipping) -> None:
    """Refuse to limit gradients of which some stay sparse.

    Raises:
        UsageError: both were asked for.
    """
    names = ", ".join(sparse)
    if names and (clipping.norm is not None or clipping.value is not None):
        raise UsageError(
            "limit the gradient of a model with sparse gradients",
            found=f"{names} would stay sparse, and torch limits dense gradients only",
            remedy="--sync.sparse dense",
        )
