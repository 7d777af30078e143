"""Ranks save and restore together, and a run that was resumed is the run that was not, for every optimizer of torch."""

import inspect
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from hvdtrain.checkpoint.manager import CheckpointManager, PerRank
from hvdtrain.errors import CheckpointError, InvalidCheckpoint
from hvdtrain.statetree import tree_digest
from hvdtrain.sync import prepare

CLASSES = {
    name: value
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
}
REFUSED = {"LBFGS", "SparseAdam"}  # by `sync.prepare`, which says why
SETTINGS = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9, "centered": True}, "Adam": {"amsgrad": True}}


@pytest.fixture
def directory(run):
    """One directory for all ranks, made and removed by root."""
    path = Path(run.collectives.on_root(tempfile.mkdtemp))
    yield path / "checkpoints"
    run.collectives.on_root(lambda: shutil.rmtree(path))


def manager_in(directory, run, **fields):
    return CheckpointManager(directory, collectives=run.collectives, run_id="b6", **fields)


def test_all_ranks_hold_what_root_saved_and_their_own(run, directory):
    rank = run.topology.rank
    with manager_in(directory, run) as manager:
        assert manager.restore_latest() is None
        state = {"model": {"w": torch.full((1000,), float(rank))}, "rng": PerRank(torch.tensor([rank]))}
        manager.save(7, state, {"loss": 0.5})
        restored = manager.restore_latest()
    rows = run.collectives.gather_json([restored.step, tree_digest(restored.state["model"]), manager.last_save_s])
    assert rows == [[7, tree_digest({"w": torch.zeros(1000)}), rows[0][2]]] * run.topology.size
    assert restored.state["rng"].tolist() == [rank]
    assert restored.manifest.size == run.topology.size


def test_a_failed_save_is_known_to_all(run, directory):
    def full_disk(snapshot):
        raise OSError(28, "No space left on device")

    manager = manager_in(directory, run, on_error="fail", publish=full_disk)
    manager.save(1, {"model": {}})
    with pytest.raises(CheckpointError, match="No space left") as caught:
        manager.close()
    assert caught.value.agreed


def test_a_missing_step_is_refused_by_all(run, directory):
    with pytest.raises(InvalidCheckpoint, match="step-00000003"):
        manager_in(directory, run).restore(3)


def train_objects(run, name, repeat):
    torch.manual_seed(1 + run.topology.rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.Tanh(), torch.nn.Linear(4, 2, bias=False))
    optimizer = CLASSES[name](model.parameters(), lr=0.01, **SETTINGS.get(name, {}))
    return model, optimizer, lambda: prepare(run, model, optimizer, name=f"{name}.{repeat}")


def train(run, model, sync, steps):
    for step in steps:
        inputs = torch.randn(run.topology.size, 3, generator=torch.Generator().manual_seed(step))  # (size, features)
        loss = model(inputs[run.topology.rank]).square().mean()
        sync.backward(loss, 1, global_samples=run.topology.size)
        sync.update()


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - REFUSED))
def test_ten_steps_a_checkpoint_and_ten_steps_are_twenty_steps(run, directory, name):
    model, optimizer, start = train_objects(run, name, "whole")
    sync = start()
    with manager_in(directory, run) as manager:
        train(run, model, sync, range(10))
        manager.save(10, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        train(run, model, sync, range(10, 20))  # while it is written
        expected = tree_digest([model.state_dict(), optimizer.state_dict()])

        model, optimizer, start = train_objects(run, name, "resumed")
        restored = manager.restore_latest()
    model.load_state_dict(restored.state["model"])
    optimizer.load_state_dict(restored.state["optimizer"])
    train(run, model, start(), range(10, 20))
    resumed = tree_digest([model.state_dict(), optimizer.state_dict()])
    assert run.collectives.gather_json([expected, resumed]) == [[expected, expected]] * run.topology.size
