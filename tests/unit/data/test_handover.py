"""What a worker hands over arrives as it was, small tensors by value and large ones in shared memory."""

from typing import NamedTuple

import torch
from torch.utils.data import DataLoader

from hvdtrain.data.handover import SMALL_BYTES
from hvdtrain.data.workers import Workers


class Pair(NamedTuple):
    one: torch.Tensor
    other: object


def tree():
    torch.manual_seed(1)
    return {
        "small": torch.randn(3, 4),
        "large": torch.randn(SMALL_BYTES),
        "turned": torch.randn(3, 5).t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 7, dtype=torch.int64),
        "flags": [torch.tensor([True, False])],
        "bf16": torch.randn(3).bfloat16(),
        "complex": torch.randn(3, dtype=torch.complex64),
        "learned": torch.ones(2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "pair": Pair(torch.arange(3), "text"),
        "others": (None, 1, {2.0}),
    }


class Trees:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return tree()


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape, found.layout) == (expected.dtype, expected.shape, expected.layout)
        assert found.requires_grad == expected.requires_grad
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            same(found[name], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


def test_everything_arrives_as_it_was():
    workers = Workers(num_workers=1, prefetch=2)
    found = list(workers.start(DataLoader(Trees(), batch_size=None, **workers.options())))
    workers.end()
    assert len(found) == 3
    for one in found:
        same(one, tree())
        assert one["large"].is_shared()
        assert not one["small"].is_shared()
        one["small"].zero_()  # it can be written to
