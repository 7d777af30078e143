"""The configuration tree: overlays, rules, what is ignored, and that every field has help and a known name."""

import dataclasses
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.config import (
    IDENTITY,
    RULES,
    SECTIONS,
    Config,
    OptimizerConfig,
    TrainConfig,
    differences,
    faults,
    flatten,
    ignored,
    overlay,
    unflatten,
)


def test_defaults_are_possible_and_nobody_is_told_of_what_was_not_given():
    assert faults(Config()) == []
    assert ignored(Config(), []) == []


@given(seed=st.integers(0, 2**40), lr=st.floats(0, 10), steps=st.none() | st.integers(1, 10**9))
def test_an_overlay_changes_what_it_names_and_nothing_else(seed, lr, steps):
    settings = {"train.seed": seed, "optimizer.lr": lr, "train.steps": steps}
    before, after = flatten(Config()), flatten(overlay(Config(), settings))
    assert after == before | settings


def test_the_form_of_a_file_is_the_same_configuration():
    config = Config(train=TrainConfig(steps=7), optimizer=OptimizerConfig(name="adamw"))
    tree = unflatten(flatten(config))
    assert tree["stop"]["signals"] == list(config.stop.signals)
    again = overlay(Config(), {f"{s}.{k}": v for s, fields in tree.items() for k, v in fields.items()})
    assert again == config


def test_all_faults_are_found_together():
    found = faults(overlay(Config(), {"train.epochs": -1, "sync.bucket_bytes": 0, "optimizer.momentum": 1.0}))
    assert len(found) == 3
    assert "train.epochs must be 0 or greater: -1" in found


def test_nesterov_needs_momentum():
    assert faults(overlay(Config(), {"optimizer.nesterov": True})) != []
    assert faults(overlay(Config(), {"optimizer.nesterov": True, "optimizer.momentum": 0.9})) == []


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"train.steps": 5, "train.epochs": 3}, "train.epochs"),
        ({"optimizer.name": "adamw", "optimizer.momentum": 0.9}, "optimizer.momentum"),
        ({"optimizer.beta1": 0.8}, "optimizer.beta1"),
        ({"schedule.name": "constant", "schedule.final_fraction": 0.1}, "schedule.final_fraction"),
        ({"sync.deterministic": False, "sync.bucket_bytes": 5}, "sync.bucket_bytes"),
        ({"checkpoint.every_steps": 5, "checkpoint.every_epochs": 3}, "checkpoint.every_epochs"),
    ],
)
def test_a_setting_without_effect_is_named(settings, name):
    config = overlay(Config(), settings)
    assert [sentence.split()[0] for sentence in ignored(config, settings)] == [name]
    assert ignored(config, []) == []


def test_rules_and_identity_name_settings_that_exist():
    assert set(RULES) | set(IDENTITY) <= set(flatten(Config()))


def test_differences_compare_what_a_file_can_hold():
    now = flatten(Config())
    saved = dict(now, **{"train.seed": 3, "stop.signals": list(now["stop.signals"]), "gone.setting": 1})
    assert differences(saved, now) == {"train.seed": (3, 0)}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=lambda section: section.__name__)
def test_every_field_has_its_help_below_it(section):
    source = inspect.getsource(section).splitlines()
    for part in dataclasses.fields(section):
        line = next(i for i, text in enumerate(source) if text.strip().startswith(f"{part.name}:"))
        assert source[line + 1].strip().startswith('"""'), part.name
