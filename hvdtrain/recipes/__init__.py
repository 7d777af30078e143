"""Complete trainings: a recipe gives model, loss and data; `train` puts a `Trainer` together and runs it.

This is the only place that knows every part. `hvdtrain run` calls it inside each rank; a script of your own can, too.

    source = find_recipe("digits")
    with hvdtrain.init(seed=0) as run:
        summary = train(run, source, Request(chosen={"train.epochs": 3}, run_dir=Path("runs/digits")))
    summary["eval"]["accuracy"]
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hvdtrain.checkpoint.delivery import Restored
from hvdtrain.checkpoint.manager import CheckpointManager
from hvdtrain.checkpoint.store import Best
from hvdtrain.checkpoint.weights import load_initial
from hvdtrain.config import IDENTITY, Config, OptimizerConfig, differences, flatten, ignored, overlay, unflatten
from hvdtrain.data.ledger import Attempt
from hvdtrain.data.loader import EvaluationLoader, evaluation_loader, loader
from hvdtrain.errors import ConfigError, RunDirectoryError
from hvdtrain.metrics import compute
from hvdtrain.metrics.writers import Writer, console, forget_after, jsonl, tensorboard
from hvdtrain.recipes.recipe import Recipe, RecipeSource, find_recipe
from hvdtrain.runtime import Run, logging_to
from hvdtrain.statetree import digest
from hvdtrain.stopping import StopRequests
from hvdtrain.sync import prepare
from hvdtrain.sync.contract import GradientSync
from hvdtrain.sync.normalization import convert_sync_batchnorm
from hvdtrain.train.callbacks import Callback, Checkpointer, Recorder
from hvdtrain.train.ema import ParameterAverage
from hvdtrain.train.ledgerkeeper import LedgerKeeper
from hvdtrain.train.progress import ProgressBar
from hvdtrain.train.rundirectory import RunDirectory, open_run_directory
from hvdtrain.train.schedule import Schedule
from hvdtrain.train.trainer import Budget, Trainer
from hvdtrain.watchdog import Watchdog, watching

__all__ = ["Recipe", "Request", "assemble", "find_recipe", "train"]

EVALUATION_BATCH_SIZE = 256  # samples per rank and forward pass


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one call of `hvdtrain run` asks for, beside the recipe.

    Attributes:
        chosen: settings given by file or command line, by dotted name.
        run_dir: where the run is kept.
        resume: `never`, `auto` (the newest valid checkpoint, if any), or a step.
        init_from: a file of initial weights, or None.
        allow_change: settings of the run's identity that may differ from the saved ones on resume.
    """

    run_dir: Path
    chosen: Mapping[str, Any] = field(default_factory=dict)
    resume: Literal["never", "auto"] | int = "never"
    init_from: Path | None = None
    allow_change: frozenset[str] = frozenset()


def train(run: Run, source: RecipeSource, request: Request) -> dict[str, Any]:
    """Collective: a whole training, from the run directory to the summary.

    Returns:
        What `summary.json` holds, on every rank.

    Raises:
        RunDirectoryError: the directory holds a run that this request does not continue.
        ConfigError: the request would make the saved run another one.
    """
    directory = open_run_directory(run, request.run_dir)
    with logging_to(run, directory.logs):
        config = resolve(run, source, request, directory)
        with watching(run, directory.path, config.watchdog) as watchdog:
            summary = _train_watched(run, source, request, directory, config, watchdog)
        run.collectives.on_root(lambda: directory.write_json("summary.json", summary))
    return summary


def _train_watched(
    run: Run, source: RecipeSource, request: Request, directory: RunDirectory, config: Config, watchdog: Watchdog
) -> dict[str, Any]:
    """Collective: the part of `train` whose failures are recorded in the run directory."""
    recipe = source.build(config)
    if request.init_from is not None:
        start_from(run, recipe.model, request.init_from)
    manager = build_manager(run, config, directory)
    with StopRequests(config.stop, env=os.environ, save_s=lambda: manager.last_save_s or 0.0) as stop:
        watchdog.listen(stop.heard)
        trainer = assemble(run, recipe, config, directory, manager, stop)
        restored = resume(trainer, manager, request, directory)
        announce(trainer, config, restored)
        return fit_and_summarize(trainer, stop, restored)


def start_from(run: Run, model: nn.Module, file: Path) -> None:
    """Collective: put a file's weights into root's model, from where preparation broadcasts them."""
    report = run.collectives.on_root(lambda: load_initial(file, model))
    run.log.info(
        "%d tensors from %s; missing there: %s; not in the model: %s",
        report["loaded"],
        file,
        ", ".join(report["missing"]) or "none",
        ", ".join(report["unexpected"]) or "none",
    )


def resolve(run: Run, source: RecipeSource, request: Request, directory: RunDirectory) -> Config:
    """Collective: the configuration of this run, which on resume starts from the saved one; saved in the directory."""
    base = overlay(Config(), source.defaults)
    saved = run.collectives.on_root(lambda: _saved(directory, request, source.name))
    known = flatten(base)
    saved_settings = {
        f"{section}.{name}": value
        for section, fields in (saved or {}).items()
        if isinstance(fields, dict)
        for name, value in fields.items()
        if f"{section}.{name}" in known
    }
    config = overlay(overlay(base, saved_settings), request.chosen)
    changed = differences(saved_settings, flatten(config))
    _refuse_another_run(changed, request.allow_change)
    for name, (old, new) in changed.items():
        run.log.info("%s was %s and is %s from here on", name, old, new)
    for sentence in ignored(config, request.chosen):
        if run.topology.is_root:
            run.log.warning("%s", sentence)
    record = {"recipe": source.name, "run_id": (saved or {}).get("run_id") or secrets.token_hex(8)}
    run.collectives.on_root(lambda: directory.write_config({**record, **unflatten(flatten(config))}))
    return config


def _saved(directory: RunDirectory, request: Request, recipe: str) -> dict[str, Any] | None:
    """Root only: the saved configuration to continue from, None for a new run."""
    holds = any(path.name.startswith("step-") for path in directory.checkpoints.iterdir())
    if request.resume == "never":
        if holds:
            raise RunDirectoryError(
                f"begin a new run in {directory.path}",
                found="it already holds checkpoints of a run",
                remedy="--resume auto   to continue that run, or another --run-dir",
            )
        return None
    saved = directory.saved_config() if holds else None
    if saved and saved.get("recipe") != recipe:
        raise RunDirectoryError(
            f"continue the recipe {recipe} in {directory.path}",
            found=f"the run there is of the recipe {saved.get('recipe')}",
            remedy=f"hvdtrain run {saved.get('recipe')} --resume auto, or another --run-dir",
        )
    return saved


def _refuse_another_run(changed: Mapping[str, tuple[Any, Any]], allowed: frozenset[str]) -> None:
    refused = [name for name in IDENTITY if name in changed and name not in allowed]
    if refused:
        raise ConfigError(
            "continue the saved run with other settings",
            found="; ".join(f"{name} was {changed[name][0]} and would be {changed[name][1]}" for name in refused)
            + ": this would make it another run",
            remedy="leave them, or: " + " ".join(f"--allow-change {name}" for name in refused),
            agreed=True,
        )


def assemble(
    run: Run,
    recipe: Recipe,
    config: Config,
    directory: RunDirectory,
    manager: CheckpointManager,
    stop: StopRequests,
) -> Trainer:
    """Collective: put the trainer of a recipe together, with parameters broadcast from root."""
    model = recipe.model.to(run.device)
    if config.sync.batchnorm == "sync":
        model = convert_sync_batchnorm(model, run.collectives)
    optimizer = build_optimizer(model, config.optimizer)
    batches = loader(
        run,
        recipe.train_data,
        global_batch_size=config.train.global_batch_size,
        shuffle=config.data.shuffle,
        seed=config.train.seed,
        remainder=config.data.remainder,
        collate=recipe.collate,
        num_workers=config.data.num_workers,
        microbatches=config.train.microbatches,
    )
    budget = Budget(steps=config.train.steps, epochs=config.train.epochs)
    sync = build_sync(run, model, optimizer, config, recipe.metrics)
    decay = config.train.ema_decay
    average = None if decay is None else ParameterAverage(model, decay=decay)
    return Trainer(
        run=run,
        model=model,
        loss=recipe.loss,
        sync=sync,
        optimizer=optimizer,
        schedule=Schedule(
            config.schedule,
            total_steps=budget.total_steps(len(batches)),
            peaks=[config.optimizer.lr for _ in optimizer.param_groups],
            size=run.topology.size,
        ),
        batches=batches,
        budget=budget,
        evaluation=build_evaluation(run, recipe),
        microbatches=config.train.microbatches,
        eval_every_epochs=config.train.eval_every_epochs,
        average=average,
        callbacks=(
            *([average] if average else []),
            *build_callbacks(run, config, directory, manager, len(recipe.train_data)),
        ),
        stop_asked=stop.asked,
    )


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


def resume(trainer: Trainer, manager: CheckpointManager, request: Request, directory: RunDirectory) -> Restored | None:
    """Collective: put the checkpoint to go on from into the trainer; None for a new run."""
    restored: Restored | None = None
    if request.resume != "never":
        restored = manager.restore_latest() if request.resume == "auto" else manager.restore(request.resume)
    if restored is not None:
        trainer.load_state_dict(restored.state)
    step = restored.step if restored else 0
    trainer.run.collectives.on_root(lambda: forget_after(directory.metrics, step))
    return restored


def announce(trainer: Trainer, config: Config, restored: Restored | None) -> None:
    """Say on root what is about to be done, and with what."""
    run, parameters = trainer.run, sum(parameter.numel() for parameter in trainer.model.parameters())
    run.log.info(
        "%d ranks on %s (%s), %d parameters, global batch of %d samples, %s, %d threads per rank",
        run.topology.size,
        run.device.type,
        run.controller,
        parameters,
        config.train.global_batch_size,
        config.sync.strategy,
        torch.get_num_threads(),
    )
    run.log.info("%s", trainer.schedule.describe())
    if restored is not None:
        run.log.info("resumed from step %d", restored.step)


def fit_and_summarize(trainer: Trainer, stop: StopRequests, restored: Restored | None) -> dict[str, Any]:
    """Collective: train to the end, and say what it came to."""
    began = time.monotonic()
    trainer.fit()
    took_s = time.monotonic() - began
    return {
        "size": trainer.run.topology.size,
        "steps": trainer.step,
        "epochs": trainer.epoch,
        "samples_seen": trainer.samples_seen,
        "train": compute(trainer.epoch_means),
        "eval": {name: int(value) if name == "count" else value for name, value in trainer.evaluated.items()},
        "samples_per_s": trainer.samples_fitted / took_s,
        "weights_sha256": digest(trainer.model.state_dict()),
        "resumed_from": restored.step if restored else None,
        "stopped_by": (stop.reason or "another rank's request") if trainer.stopped else "completed",
    }
