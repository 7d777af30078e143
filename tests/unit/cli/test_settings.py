"""Settings from words and files: right values with right types, and every fault in one message."""

import pytest

from hvdtrain.cli.settings import NAMES, nearest, read_settings, split_settings
from hvdtrain.errors import ConfigError


def read(*words, file=None):
    return read_settings(split_settings(words)[1], file)


def test_settings_are_told_from_other_words():
    rest, settings = split_settings(["digits", "--train.epochs", "3", "--resume", "auto", "--optimizer.lr=0.1"])
    assert rest == ["digits", "--resume", "auto"]
    assert settings == [("--train.epochs", "3"), ("--optimizer.lr", "0.1")]


def test_values_have_their_types():
    chosen = read("--train.steps", "null", "--optimizer.lr=1e-3", "--data.shuffle", "false", "--stop.signals=[SIGUSR1]")
    assert chosen == {
        "train.steps": None,
        "optimizer.lr": 0.001,
        "data.shuffle": False,
        "stop.signals": ("SIGUSR1",),
    }


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("train: {epochs: 7, seed: 3}\n")
    assert read("--train.epochs", "9", file=file) == {"train.epochs": 9, "train.seed": 3}


def test_all_faults_of_words_and_file_are_in_one_message(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("train: {epochz: 7, seed: many}\noptimiser: {lr: 1}\n")
    with pytest.raises(ConfigError) as refused:
        read("--train.step", "3", "--data.num_workers", "-1", "--sync.strategy", "ring", "--train.epochs", file=file)
    found = refused.value.found
    assert found.startswith("7 faults")
    assert f"{file}: train.epochz is not a setting (nearest: train.epochs)" in found
    assert f"{file}: train.seed is 'many'" in found
    assert "optimiser.lr is not a setting (nearest: optimizer.lr)" in found
    assert "--train.step is not a setting (nearest: train.steps)" in found
    assert "data.num_workers must be 0 or greater: -1" in found
    assert "sync.strategy is 'ring'" in found
    assert "--train.epochs has no value" in found


@pytest.mark.parametrize("text", ["[1, 2]", "- a\n- b", "{", "just text", "train: 3", "\x00"])
def test_no_file_raises_anything_but_our_own_error(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        read(file=file)


def test_an_abbreviation_is_not_a_setting():
    with pytest.raises(ConfigError, match=r"nearest: train\.global_batch_size"):
        read("--train.global_batch", "3")


def test_the_nearest_name_is_found_in_another_section_too():
    assert nearest("train.lr", NAMES) == " (nearest: optimizer.lr)"
    assert nearest("zzz", NAMES) == ""
