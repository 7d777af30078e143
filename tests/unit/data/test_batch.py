from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.data.batch import Batch, cut
from hvdtrain.errors import ConfigError, OrderError


class Pair(NamedTuple):
    image: torch.Tensor
    name: list


def batch_of(data, samples, **options):
    return Batch(data=data, samples=samples, global_samples=8, epoch=0, start=0, stop=8, indices=None, **options)


@given(samples=st.integers(0, 30), parts=st.integers(1, 9))
def test_a_split_has_exactly_so_many_parts_and_loses_nothing(samples, parts):
    pieces = batch_of({"x": torch.arange(samples)}, samples).split(parts)
    assert len(pieces) == parts
    assert [len(data["x"]) for data, _ in pieces] == [count for _, count in pieces]
    assert torch.cat([data["x"] for data, _ in pieces]).tolist() == list(range(samples))
    counts = [count for _, count in pieces]
    assert max(counts) - min(counts) <= 1


def test_a_cut_walks_through_any_structure():
    data = {
        "pair": Pair(torch.arange(4), ["a", "b", "c", "d"]),
        "arrays": (np.arange(8).reshape(4, 2), [torch.ones(4, 3)]),
        "mask": torch.ones(7, 7),
        "ordered": OrderedDict(scalar=torch.tensor(3.0)),
        "note": "whole",
    }
    part = cut(data, 4, range(1, 3))
    assert type(part["pair"]) is Pair
    assert part["pair"].image.tolist() == [1, 2]
    assert part["pair"].name == ["b", "c"]
    assert part["arrays"][0].tolist() == [[2, 3], [4, 5]]
    assert part["arrays"][1][0].shape == (2, 3)
    assert part["mask"].shape == (7, 7)
    assert type(part["ordered"]) is OrderedDict
    assert part["ordered"]["scalar"] == 3
    assert part["note"] == "whole"


def test_a_cut_to_nothing_keeps_shapes_and_dtypes():
    image, label = cut((torch.zeros(1, 3, 8, 8), torch.zeros(1, dtype=torch.int64)), 1, range(0))
    assert image.shape == (0, 3, 8, 8)
    assert label.shape == (0,)
    assert label.dtype == torch.int64


def test_a_batch_is_committed_once():
    calls = []
    batch = batch_of(None, 4, on_commit=lambda: calls.append("committed"))
    batch.commit()
    with pytest.raises(OrderError, match="committed already"):
        batch.commit()
    assert calls == ["committed"]


def test_a_commit_that_was_refused_does_not_count():
    def refuse():
        raise OrderError("commit", found="an earlier batch is not committed")

    batch = batch_of(None, 4, on_commit=refuse)
    with pytest.raises(OrderError, match="earlier"):
        batch.commit()
    assert not batch.committed


def test_no_parts_are_refused():
    with pytest.raises(ConfigError, match="0 parts"):
        batch_of(None, 4).split(0)
