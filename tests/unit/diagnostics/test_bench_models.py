"""The models are of the sizes that the benchmark names, the same in every process."""

import pytest
import torch

from hvdtrain.diagnostics.bench import step
from hvdtrain.diagnostics.bench.models import COMPARED, build


@pytest.mark.parametrize(("name", "millions"), [("mlp", 12.6), ("transformer", 4.7), ("cnn", 0.6), ("narrow", 0.6)])
def test_sizes(name, millions):
    built = build(name)
    assert round(sum(p.numel() for p in built.model.parameters()) / 1e6, 1) == millions
    built.loss().backward()
    assert all(p.grad is not None for p in built.model.parameters())


def test_150_narrow_layers():
    assert sum(isinstance(layer, torch.nn.Linear) for layer in build("narrow").model) == 150


def test_models_are_alike_and_leave_the_generator_alone():
    torch.manual_seed(5)
    a, drawn = build("cnn"), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    b = build("cnn")
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))
    assert torch.equal(a.inputs, b.inputs)


def test_all_of_them_are_compared():
    assert step.MODELS == COMPARED
