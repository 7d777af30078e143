"""What a recipe is: the model, the loss and the data of a training, and nothing of ranks.

A recipe file defines one function, and may name defaults of its own for any setting:

    DEFAULTS = {"train.epochs": 20, "optimizer.name": "adamw", "optimizer.lr": 1e-3}

    def recipe(config: Config) -> Recipe:
        return Recipe(model=build(), loss=loss, train_data=TensorDataset(x, y), eval_data=TensorDataset(u, v))
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from hvdtrain.config import Config
from hvdtrain.data.augmentation import KeyedDataset, MapDataset
from hvdtrain.errors import UsageError
from hvdtrain.train.trainer import LossFunction

BUILT_IN = ("digits", "bytelm")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The parts of one training.

    Attributes:
        model: on the CPU, with initial weights; root's win.
        loss: from the model and a collated batch to the mean loss and metrics of its samples.
        train_data: map-style, with a length.
        eval_data: held-out samples, or None.
        metrics: names of the metrics that `loss` gives beside the loss.
        collate: from a list of samples to a batch; torch's default when None.
    """

    model: nn.Module
    loss: LossFunction
    train_data: MapDataset | KeyedDataset
    eval_data: MapDataset | KeyedDataset | None = None
    metrics: Sequence[str] = ()
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """A recipe that was found but not built yet: its name, its function and its defaults for settings."""

    name: str
    build: Callable[[Config], Recipe]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def find_recipe(name: str) -> RecipeSource:
    """A built-in recipe by name, or the recipe in a Python file.

    Raises:
        UsageError: there is no such recipe or file, or the file defines no `recipe`.
    """
    if name in BUILT_IN:
        module = importlib.import_module(f"hvdtrain.recipes.{name}")
    elif name.endswith(".py"):
        module = _import_file(Path(name))
    else:
        near = get_close_matches(name, BUILT_IN, n=1)
        raise UsageError(
            f"run the recipe {name!r}",
            found=f"the recipes here are {', '.join(BUILT_IN)}; a recipe of your own is a FILE.py",
            remedy=f"hvdtrain run {near[0] if near else 'digits'}",
        )
    build = getattr(module, "recipe", None)
    if not callable(build):
        raise UsageError(
            f"run the recipe in {name}",
            found="it defines no function named recipe",
            remedy="def recipe(config): return hvdtrain.Recipe(model=..., loss=..., train_data=...)",
        )
    return RecipeSource(name=Path(name).stem, build=build, defaults=getattr(module, "DEFAULTS", {}))


def _import_file(path: Path) -> ModuleType:
    """Import a file under its stem, from its own folder, so that worker processes can import it too."""
    if not path.is_file():
        raise UsageError(f"run the recipe in {path}", found="there is no such file", remedy=f"ls {path.parent}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UsageError(
            f"run the recipe in {path}",
            found=f"the name {path.stem!r} already means {module.__file__ or 'a module of Python itself'}",
            remedy=f"mv {path} {path.with_stem('my_' + path.stem)}",
        )
    return module
