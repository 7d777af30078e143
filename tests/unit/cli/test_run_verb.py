"""`hvdtrain run` before any rank is started: what is asked, what is refused, what is printed."""

from pathlib import Path

import pytest
import yaml

from hvdtrain.cli import main
from hvdtrain.cli.run import read_command
from hvdtrain.config import Config, flatten
from hvdtrain.errors import ConfigError


@pytest.fixture(autouse=True)
def started_by_itself(monkeypatch):
    """No launcher's variables, whatever started the tests."""
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_of_a_command():
    command = read_command(["digits"])
    assert (command.run_dir, command.resume, command.chosen) == (Path("runs/digits"), "never", {})


def test_the_name_of_a_file_names_its_run():
    assert read_command(["somewhere/my_recipe.py"]).run_dir == Path("runs/my_recipe")


def test_options_and_settings_in_any_order():
    command = read_command(["--train.seed", "5", "digits", "--resume", "40", "--allow-change", "train.seed"])
    assert (command.chosen, command.resume, command.allow_change) == ({"train.seed": 5}, 40, {"train.seed"})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "required: RECIPE"),
        (["digits", "--resume", "maybe"], "neither auto, never nor a step"),
        (["digits", "--allow-change", "train.sed"], "nearest: train.seed"),
        (["digits", "--rum-dir", "x"], "--rum-dir is not a setting"),
        (["digits", "--res", "auto"], "--res is not a setting"),
    ],
)
def test_what_is_not_understood_is_refused(words, says):
    with pytest.raises(ConfigError, match=says):
        read_command(words)


def test_the_whole_configuration_is_printed_and_can_be_read_again(capsys):
    assert main(["run", "digits", "--train.epochs", "3", "--print_config"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    assert {f"{s}.{k}" for s, fields in tree.items() for k in fields} == set(flatten(Config()))
    assert tree["train"]["epochs"] == 3


def test_help_has_every_setting_with_its_text(capsys):
    assert main(["run", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in flatten(Config()):
        assert f"--{name} " in text
    assert "Samples per step over all ranks together" in text


def test_a_verb_that_does_not_exist(capsys):
    assert main(["lauch"]) == 2
    assert "do:    hvdtrain launch" in capsys.readouterr().err


def test_an_unknown_recipe(capsys):
    assert main(["run", "digts"]) == 2
    assert "hvdtrain run digits" in capsys.readouterr().err


def test_faults_are_told_by_root_alone(capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("PMIX_RANK", "1")
    assert main(["run", "digits", "--train.epochs", "-1"]) == 2
    assert capsys.readouterr().err == ""


def test_variables_without_a_launcher_are_refused_on_whatever_rank(capsys, monkeypatch):
    monkeypatch.delenv("PMIX_RANK", raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert main(["run", "digits"]) == 2
    assert "no mpirun behind it" in capsys.readouterr().err
