"""Every optimizer of torch goes on from a checkpoint as if nothing had happened: 10 steps, a save, 10 more are 20."""

import inspect

import pytest
import torch

from hvdtrain.checkpoint.manager import CheckpointManager
from hvdtrain.collectives import Collectives, SoloTransport
from hvdtrain.statetree import digest, flatten, tree_digest

CLASSES = {
    name: value
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
}
SETTINGS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"amsgrad": True},
    "ASGD": {"t0": 5},
}
ALONE = Collectives(SoloTransport())


def train_objects(name):
    """A model of matrices alone for Muon, which takes no others; for SparseAdam an embedding with sparse gradients."""
    torch.manual_seed(1)
    if name == "SparseAdam":
        model = torch.nn.Embedding(7, 3, sparse=True)
    elif name == "Muon":
        model = torch.nn.Linear(3, 4, bias=False)
    else:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return model, CLASSES[name](model.parameters(), lr=0.01, **SETTINGS.get(name, {}))


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        if isinstance(model, torch.nn.Embedding):
            inputs = torch.randint(7, (5,), generator=generator)
        else:
            inputs = torch.randn(5, 3, generator=generator)

        def closure(inputs=inputs):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_all_classes_are_here():
    assert {"SGD", "Adam", "AdamW", "LBFGS", "SparseAdam", "Muon", "Adafactor"} <= CLASSES.keys()
    assert len(CLASSES) >= 14


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_ten_steps_a_checkpoint_and_ten_steps_are_twenty_steps(tmp_path, name):
    model, optimizer = train_objects(name)
    train(model, optimizer, range(20))
    expected = tree_digest(state_of(model, optimizer))

    model, optimizer = train_objects(name)
    train(model, optimizer, range(10))
    with CheckpointManager(tmp_path / "c", collectives=ALONE, run_id="r") as manager:
        manager.save(10, state_of(model, optimizer))
        halfway = tree_digest(state_of(model, optimizer))
        restored = manager.restore_latest()
    assert tree_digest(restored.state) == halfway

    model, optimizer = train_objects(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    model.load_state_dict(restored.state["model"])
    optimizer.load_state_dict(restored.state["optimizer"])
    assert flatten(optimizer.state_dict()).skeleton == flatten(restored.state["optimizer"]).skeleton
    train(model, optimizer, range(10, 20))
    assert tree_digest(state_of(model, optimizer)) == expected
    assert digest(model.state_dict()) != digest(restored.state["model"])
