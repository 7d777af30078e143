"""What cannot be trained on several ranks, refused before anything is exchanged; and updates that cannot be made.

refuse_optimizer(optimizer)                            # UsageError for LBFGS
refuse_sparse_clipping(["embedding.weight"], clipping)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

import torch

from hvdtrain.errors import NonFiniteLoss, UsageError
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


def nonfinite_loss(update: int, ranks: Sequence[int], *, agreed: bool) -> NonFiniteLoss:
    """The error of an update that cannot be made.

    Args:
        update: its number.
        ranks: whose loss is infinite or not a number; none where only the averaged gradient is.
        agreed: all ranks raise it together.
    """
    where = f"the loss of ranks {list(ranks)}" if ranks else "the averaged gradient"
    error = NonFiniteLoss(
        f"make update {update}",
        found=f"{where} is infinite or not a number",
        remedy="a smaller learning rate or optimizer.clip_norm; or leave such steps out with nonfinite=skip",
        agreed=agreed,
    )
    return error.at(ranks[0] if ranks else None, "forward" if ranks else "backward")
