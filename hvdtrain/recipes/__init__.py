"""Complete trainings: a recipe gives model, loss and data; `train` puts a `Trainer` together and runs it.

This is the only place that knows every part. `hvdtrain run` calls it inside each rank; a script of your own can, too.

    source = find_recipe("digits")
    with hvdtrain.init(seed=0) as run:
        summary = train(run, source, Request(chosen={"train.epochs": 3}, run_dir=Path("runs/digits")))
    summary["eval"]["accuracy"]
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hvdtrain.checkpoint.delivery import Restored
from hvdtrain.checkpoint.manager import CheckpointManager
from hvdtrain.checkpoint.weights import load_initial
from hvdtrain.config import Config
from hvdtrain.data.loader import loader
from hvdtrain.metrics import compute
from hvdtrain.metrics.writers import forget_after
from hvdtrain.recipes.parts import build_callbacks, build_evaluation, build_manager, build_optimizer, build_sync
from hvdtrain.recipes.recipe import Recipe, RecipeSource, find_recipe
from hvdtrain.recipes.request import Request, resolve
from hvdtrain.runtime import Run, logging_to
from hvdtrain.statetree import digest
from hvdtrain.stopping import StopRequests
from hvdtrain.sync.normalization import convert_sync_batchnorm
from hvdtrain.sync.strategies import job_of
from hvdtrain.train.ema import ParameterAverage
from hvdtrain.train.pace import Pace
from hvdtrain.train.rundirectory import RunDirectory, open_run_directory
from hvdtrain.train.schedule import Schedule
from hvdtrain.train.trainer import Budget, Trainer
from hvdtrain.watchdog import Watchdog, watching

__all__ = ["Recipe", "Request", "assemble", "build_optimizer", "find_recipe", "train"]


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
        pace = Pace(request.prediction(run.topology.size))
        return fit_and_summarize(trainer, stop, restored, pace)


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
        job_of(run, config.sync),
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
        evaluation=build_evaluation(job_of(run, config.sync), recipe),
        microbatches=config.train.microbatches,
        eval_every_epochs=config.train.eval_every_epochs,
        average=average,
        callbacks=(
            *([average] if average else []),
            *build_callbacks(run, config, directory, manager, len(recipe.train_data)),
        ),
        stop_asked=stop.asked,
    )


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


def fit_and_summarize(trainer: Trainer, stop: StopRequests, restored: Restored | None, pace: Pace) -> dict[str, Any]:
    """Collective: train to the end, and say what it came to."""
    trainer.callbacks = (pace, *trainer.callbacks)
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
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
        **pace.fields(),
        "gradient_bytes": sum(parameter.numel() * parameter.element_size() for parameter in trained),
        "weights_sha256": digest(trainer.model.state_dict()),
        "resumed_from": restored.step if restored else None,
        "stopped_by": (stop.reason or "another rank's request") if trainer.stopped else "completed",
    }
