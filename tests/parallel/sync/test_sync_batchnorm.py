"""SyncBatchNorm against BatchNorm on the joined batch, and running statistics that are made equal."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from hvdtrain.statetree import digest
from hvdtrain.sync.normalization import SyncBatchNorm, attend, convert_sync_batchnorm, equalize_statistics

SHAPES = {"1d": (14, 5), "sequence": (14, 5, 3), "2d": (14, 5, 4, 3)}


def parts_of(size, kind):
    if kind == "idle" and size > 1:
        return [14] + [0] * (size - 1)
    cuts = [14 * rank * (rank + 1) // (size * (size + 1)) for rank in range(size + 1)]
    return [stop - start for start, stop in pairwise(cuts)]


@pytest.mark.parametrize("parts", ["unequal", "idle"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "settings", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}], ids=str
)
def test_forward_backward_and_statistics_are_those_of_the_joined_batch(run, shape, settings, parts):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SHAPES[shape], generator=generator) * 3 + 1
    weights = torch.randn(SHAPES[shape], generator=generator)
    kind = nn.BatchNorm2d if shape == "2d" else nn.BatchNorm1d
    alone, mine = kind(5, **settings), convert_sync_batchnorm(kind(5, **settings), run.collectives)
    counts = parts_of(run.topology.size, parts)
    start = sum(counts[: run.topology.rank])
    cut = slice(start, start + counts[run.topology.rank])
    whole, part = x.clone().requires_grad_(), x[cut].clone().requires_grad_()
    (alone(whole) * weights).sum().backward()
    if counts[run.topology.rank]:
        y = mine(part)
        (y * weights[cut]).sum().backward()
        assert torch.allclose(part.grad, whole.grad[cut], atol=1e-5)
    else:
        attend(mine)
    for name, parameter in mine.named_parameters():
        local = torch.zeros(5) if parameter.grad is None else parameter.grad
        summed = run.collectives.allreduce_sum(local)
        assert torch.allclose(summed, getattr(alone, name).grad, atol=1e-4), name
    for name, buffer in mine.named_buffers():
        assert torch.allclose(buffer.float(), getattr(alone, name).float(), atol=1e-5), name


def test_conversion_keeps_parameters_buffers_and_mode(run):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, eps=1e-3), nn.Sequential(nn.BatchNorm1d(4))).eval()
    before = model.state_dict()
    parameters = [id(parameter) for parameter in model.parameters()]
    converted = convert_sync_batchnorm(model, run.collectives)
    assert isinstance(converted[1], SyncBatchNorm)
    assert isinstance(converted[2][0], SyncBatchNorm)
    assert converted[1].eps == 1e-3
    assert not converted[1].training
    assert [id(parameter) for parameter in converted.parameters()] == parameters
    assert list(converted.state_dict()) == list(before)


def test_evaluation_does_not_communicate(run):
    layer = convert_sync_batchnorm(nn.BatchNorm1d(3), run.collectives).eval()
    if run.topology.is_root:  # alone: it would wait if it did
        assert torch.allclose(layer(torch.ones(2, 3)), torch.ones(2, 3), atol=1e-4)


def test_local_statistics_are_averaged_and_equal_ones_keep_their_bits(run):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    generator = torch.Generator().manual_seed(run.topology.rank)
    model(torch.randn(5, 3, generator=generator))
    equalize_statistics(model, run.collectives)
    first = digest(model.state_dict())
    assert len(set(run.collectives.gather_json(first))) == 1
    equalize_statistics(model, run.collectives)
    assert digest(model.state_dict()) == first
