"""The parts of a trainer, each from the section of the configuration that is about it.

optimizer = build_optimizer(model, config.optimizer)
manager = build_manager(run, config, directory)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hvdtrain.checkpoint.manager import CheckpointManager
from hvdtrain.checkpoint.store import Best
from hvdtrain.config import Config, OptimizerConfig, flatten, unflatten
from hvdtrain.data.ledger import Attempt
from hvdtrain.data.loader import EvaluationLoader, evaluation_loader
from hvdtrain.metrics.writers import Writer, console, jsonl, tensorboard
from hvdtrain.recipes.recipe import Recipe
from hvdtrain.runtime import Run
from hvdtrain.sync import prepare
from hvdtrain.sync.contract import GradientSync
from hvdtrain.train.callbacks import Callback, Checkpointer, Recorder
from hvdtrain.train.ledgerkeeper import LedgerKeeper
from hvdtrain.train.progress import ProgressBar
from hvdtrain.train.rundirectory import RunDirectory

EVALUATION_BATCH_SIZE = 256  # samples per rank and forward pass


def build_sync(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, metrics: Sequence[str]
) -> GradientSync:
    """Collective: the exchange that the configuration names, with parameters broadcast from root."""
    return prepare(
        run,
        model,
        optimizer,
        config=config.sync,
        clip_norm=config.optimizer.clip_norm,
        clip_value=config.optimizer.clip_value,
        metrics=metrics,
        nonfinite=config.train.nonfinite,
        precision=config.train.precision,
        sentinel=config.sentinel,
    )


def build_evaluation(run: Run, recipe: Recipe) -> EvaluationLoader | None:
    """This rank's part of the held-out samples, if there are any."""
    if recipe.eval_data is None:
        return None
    return evaluation_loader(run, recipe.eval_data, batch_size=EVALUATION_BATCH_SIZE, collate=recipe.collate)


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that the configuration names, over the model's trainable parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    kinds: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    betas = (config.beta1, config.beta2)
    return kinds[config.name](parameters, lr=config.lr, betas=betas, weight_decay=config.weight_decay)


def build_manager(run: Run, config: Config, directory: RunDirectory) -> CheckpointManager:
    """Collective: the checkpoints of this run directory."""
    best = config.checkpoint.best
    by_steps = config.checkpoint.every_steps is not None
    run_id = run.collectives.on_root(lambda: (directory.saved_config() or {})["run_id"])
    return CheckpointManager(
        directory.checkpoints,
        collectives=run.collectives,
        run_id=run_id,
        config=unflatten(flatten(config)),
        every_steps=config.checkpoint.every_steps,
        every_epochs=None if by_steps else config.checkpoint.every_epochs,
        keep=config.checkpoint.keep,
        keep_every=config.checkpoint.keep_every,
        best=Best(best.lstrip("-"), "min" if best.startswith("-") else "max") if best else None,
        asynchronous=config.checkpoint.asynchronous,
        on_error=config.checkpoint.on_error,
    )


def build_callbacks(
    run: Run, config: Config, directory: RunDirectory, manager: CheckpointManager, samples: int
) -> tuple[Callback, ...]:
    """What is done between steps; root's alone write. The checkpoint comes last, so it holds what the others did."""
    writers: list[Writer] = []
    others: list[Callback] = []
    if run.topology.is_root:
        writers.append(jsonl(directory.metrics))
        writers.append(console(run.log))
        if config.train.tensorboard:
            writers.append(tensorboard(directory.path / "tensorboard"))
        if config.train.progress:
            others.append(ProgressBar())
    checkpointer = Checkpointer(manager)
    if config.data.ledger:
        keeper = build_ledger(run, config, directory, samples)
        checkpointer = Checkpointer(manager, before_save=keeper.flush)
        others.append(keeper)
    return (Recorder(writers, every_steps=config.train.log_every), *others, checkpointer)


def build_ledger(run: Run, config: Config, directory: RunDirectory, samples: int) -> LedgerKeeper:
    """The ledger of a training on so many samples."""
    attempt = Attempt(
        size=run.topology.size,
        resumed_from=None,
        n=samples,
        seed=config.train.seed,
        global_batch_size=config.train.global_batch_size,
        remainder=config.data.remainder,
        shuffle=config.data.shuffle,
    )
    return LedgerKeeper(directory.path, attempt)
