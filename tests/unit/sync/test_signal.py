"""The table that travels with the gradients: whole numbers survive fp32, rows meet by summing, steps are compared."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import StepMismatch
from hvdtrain.sync.signal import FIELDS, LARGEST_WHOLE, SignalLayout

WHOLE = st.integers(0, LARGEST_WHOLE)


@given(st.data(), st.integers(1, 8), st.integers(0, 5), st.integers(0, 3))
def test_every_row_arrives_whole_at_every_rank(data, size, parameters, extra):
    layout = SignalLayout(size=size, metrics=tuple(f"m{i}" for i in range(extra)), parameters=parameters)
    width = len(layout.columns)
    rows = data.draw(st.lists(st.lists(WHOLE, min_size=width, max_size=width), min_size=size, max_size=size))
    used = data.draw(st.lists(st.lists(st.booleans(), min_size=parameters, max_size=parameters), min_size=size))[:size]
    summed = sum(layout.encode(rank, row, using) for rank, (row, using) in enumerate(zip(rows, used, strict=True)))
    table = layout.decode(summed)
    assert table.rows == rows
    assert table.users == [sum(column) for column in zip(*used, strict=True)] if parameters else table.users == []


def test_a_signal_has_the_stated_shape():
    layout = SignalLayout(size=3, metrics=("accuracy",), parameters=4)
    signal = layout.encode(1, range(len(layout.columns)), [True] * 4)
    assert signal.shape == (layout.numel,) == (3 * (len(FIELDS) + 1) + 4,)
    assert signal.dtype == torch.float32


def test_ranks_at_different_steps_are_told_who_is_where():
    layout = SignalLayout(size=2)
    width = len(layout.columns)
    table = layout.decode(layout.encode(0, [5, *[0] * (width - 1)], []) + layout.encode(1, [6, *[0] * (width - 1)], []))
    with pytest.raises(StepMismatch, match="rank 1 is at step 6") as refused:
        table.check_step()
    assert refused.value.agreed
