"""The learning rate: warm-up, shapes, ends, and scaling by size only when asked."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.config import ScheduleConfig
from hvdtrain.train.schedule import Schedule


@pytest.mark.parametrize("name", ["constant", "cosine", "linear"])
def test_warm_up_rises_to_the_peak_and_the_shape_begins_there(name):
    schedule = Schedule(ScheduleConfig(name=name, warmup_steps=4), total_steps=20, peaks=[1.0])
    assert [schedule.factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_shapes_at_half_way():
    def at(name, step):
        return Schedule(ScheduleConfig(name=name, final_fraction=0.1), total_steps=10, peaks=[1.0]).factor(step)

    assert at("linear", 5) == pytest.approx(0.55)
    assert at("cosine", 5) == pytest.approx(0.55)
    assert at("cosine", 2) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.2)))
    assert at("constant", 9) == 1.0


@given(st.sampled_from(["constant", "cosine", "linear"]), st.integers(0, 50), st.integers(1, 100), st.integers(0, 300))
def test_the_factor_stays_between_zero_and_one_beyond_the_end_too(name, warmup, total, step):
    factor = Schedule(ScheduleConfig(name=name, warmup_steps=warmup), total_steps=total, peaks=[1.0]).factor(step)
    assert 0.0 <= factor <= 1.0


@pytest.mark.parametrize(("scale", "peak"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_scaling_by_size_only_when_asked_and_always_said(scale, peak):
    schedule = Schedule(ScheduleConfig(name="constant", scale_by_size=scale), total_steps=10, peaks=[0.1], size=4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule.apply(optimizer, step=0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(peak)
    assert f"= {peak:g}, 0 warm-up steps" in schedule.describe()


def test_groups_keep_their_own_peaks():
    schedule = Schedule(ScheduleConfig(name="linear"), total_steps=4, peaks=[1.0, 0.1])
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]}, {"params": [torch.nn.Parameter(torch.zeros(1))]}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule.apply(optimizer, step=2)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, pytest.approx(0.05)]
