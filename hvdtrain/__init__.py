"""Data-parallel PyTorch training on MPI: it starts anywhere, is the same run whatever happens to it, and never hangs.

Importing this package starts nothing, changes no environment variable and configures no logging; the public names below
are imported when first used, so that the verbs for a login node work without torch, MPI or Horovod.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "HvdtrainError": "hvdtrain.errors",
    "Augmented": "hvdtrain.data.augmentation",
    "Callback": "hvdtrain.train.callbacks",
    "Config": "hvdtrain.config",
    "Output": "hvdtrain.train.trainer",
    "Recipe": "hvdtrain.recipes.recipe",
    "Run": "hvdtrain.runtime",
    "Topology": "hvdtrain.topology",
    "evaluation_loader": "hvdtrain.data.loader",
    "init": "hvdtrain.runtime",
    "loader": "hvdtrain.data.loader",
    "prepare": "hvdtrain.sync",
    "stage": "hvdtrain.data.staging",
    "stream_loader": "hvdtrain.data.stream",
    "wrap_dataloader": "hvdtrain.data.foreign",
    "save": "hvdtrain.checkpoint.weights",
    "together": "hvdtrain.sync.exhaustion",
    "watch": "hvdtrain.watchdog",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hvdtrain' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
