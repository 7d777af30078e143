"""A training on N ranks is the training of one process on the joined batch, and a resumed one is the unbroken one."""

import json
import math
from pathlib import Path

import pytest
import torch

from hvdtrain.config import Config, overlay
from hvdtrain.data.sampler import Sampler
from hvdtrain.errors import ConfigError, RunDirectoryError
from hvdtrain.recipes import Request, build_optimizer, find_recipe, train
from hvdtrain.runtime import seed_everything
from hvdtrain.train.schedule import Schedule

STEPS = 50


def alone(source, config, steps):
    """The losses of a plain loop in one process: no rank, no exchange, nothing of the trainer."""
    seed_everything(config.train.seed, rank=0)
    recipe = source.build(config)
    optimizer = build_optimizer(recipe.model, config.optimizer)
    peaks = [config.optimizer.lr for _ in optimizer.param_groups]
    schedule = Schedule(config.schedule, total_steps=steps, peaks=peaks)
    batch_size = config.train.global_batch_size
    sampler = Sampler(len(recipe.train_data), seed=config.train.seed, global_batch_size=batch_size, rank=0, size=1)
    losses = []
    while len(losses) < steps:
        for share in sampler.shares():
            data = [part[torch.from_numpy(share.indices.copy())] for part in recipe.train_data.tensors]
            schedule.apply(optimizer, len(losses))
            output = recipe.loss(recipe.model, data)
            optimizer.zero_grad()
            output.loss.backward()
            if config.optimizer.clip_norm:
                torch.nn.utils.clip_grad_norm_(recipe.model.parameters(), config.optimizer.clip_norm)
            optimizer.step()
            losses.append(output.loss.item())
            sampler.commit(share)
            if len(losses) == steps:
                break
        else:
            sampler.next_epoch()
    return losses


@pytest.fixture
def folder(run, tmp_path_factory):
    """One folder for all ranks, made by root."""
    return run.collectives.on_root(lambda: str(tmp_path_factory.mktemp("run")))


def go(run, name, folder, resume="never", **settings):
    """Collective: train in a folder, from the state in which a process starts."""
    seed_everything(0, run.topology.rank)
    chosen = {f"{key.replace('__', '.')}": value for key, value in settings.items()}
    chosen |= {"train.log_every": 1, "train.progress": False}
    return train(run, find_recipe(name), Request(chosen=chosen, run_dir=Path(folder), resume=resume))


def losses_in(folder):
    records = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["split"] == "train"]


@pytest.mark.parametrize(
    ("name", "batch", "tolerance"), [("digits", 64, 1e-4), ("digits", 61, 1e-4), ("bytelm", 8, 1e-3)]
)
def test_the_losses_are_those_of_one_process(run, folder, name, batch, tolerance):
    source = find_recipe(name)
    summary = go(run, name, folder, train__steps=STEPS, train__global_batch_size=batch, train__eval_every_epochs=0)
    config = overlay(overlay(Config(), source.defaults), {"train.global_batch_size": batch})
    expected = run.collectives.on_root(lambda: alone(source, config, STEPS))
    measured = run.collectives.on_root(lambda: losses_in(folder))
    assert (summary["size"], summary["steps"], len(measured)) == (run.topology.size, STEPS, STEPS)
    assert max(abs(a - b) / a for a, b in zip(expected, measured, strict=True)) < tolerance


def test_evaluation_counts_every_held_out_sample_once(run, folder):
    summary = go(run, "digits", folder, train__steps=1)
    assert summary["eval"]["count"] == 360


def test_a_resumed_run_has_the_weights_of_an_unbroken_one(run, folder):
    settings = {"schedule__name": "constant", "train__global_batch_size": 32}
    whole = go(run, "digits", f"{folder}/whole", train__steps=12, **settings)
    go(run, "digits", f"{folder}/parts", train__steps=5, **settings)
    parts = go(run, "digits", f"{folder}/parts", resume="auto", train__steps=12, **settings)
    records = run.collectives.on_root(lambda: [losses_in(f"{folder}/{name}") for name in ("whole", "parts")])
    assert parts["resumed_from"] == 5
    assert parts["weights_sha256"] == whole["weights_sha256"]
    assert records[0] == records[1]


def test_a_resumed_run_with_workers_and_augmentation_is_the_unbroken_one_without_workers(run, folder):
    recipe = str(Path(__file__).with_name("augmented_digits.py"))
    settings = {"schedule__name": "constant", "train__global_batch_size": 32}
    whole = go(run, recipe, f"{folder}/whole", train__steps=9, **settings)
    go(run, recipe, f"{folder}/parts", train__steps=4, data__num_workers=2, **settings)
    parts = go(run, recipe, f"{folder}/parts", resume="auto", train__steps=9, data__num_workers=2, **settings)
    plain = go(run, "digits", f"{folder}/plain", train__steps=9, **settings)
    assert parts["resumed_from"] == 4
    assert parts["weights_sha256"] == whole["weights_sha256"]
    assert plain["weights_sha256"] != whole["weights_sha256"], "nothing was augmented"


def test_microbatches_change_nothing_but_rounding(run, folder):
    go(run, "digits", f"{folder}/one", train__steps=10)
    go(run, "digits", f"{folder}/four", train__steps=10, train__microbatches=4)
    one, four = run.collectives.on_root(lambda: [losses_in(f"{folder}/{name}") for name in ("one", "four")])
    assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(one, four, strict=True))


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(run, folder):
    go(run, "digits", folder, train__steps=2)
    with pytest.raises(RunDirectoryError, match="already holds checkpoints") as refused:
        go(run, "digits", folder, train__steps=2)
    assert refused.value.agreed
    with pytest.raises(ConfigError, match=r"train.seed was 0 and would be 5.*another run"):
        go(run, "digits", folder, resume="auto", train__seed=5)
    with pytest.raises(RunDirectoryError, match="is of the recipe digits"):
        go(run, "bytelm", folder, resume="auto")
