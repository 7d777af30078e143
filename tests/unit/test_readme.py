"""README is true: its links exist, its commands are understood, its options and names are there."""

import re
import shlex
from pathlib import Path

import pytest

import hvdtrain
from hvdtrain.cli import VERBS, main
from hvdtrain.cli.run import read_command

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.M | re.S)
COMMANDS = [line for kind, block in BLOCKS if kind == "" for line in block.splitlines() if line.strip()]


def words_of(command):
    return shlex.split(command, comments=True)


def test_there_are_commands_to_hold_it_to():
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


@pytest.mark.parametrize("command", [c for c in COMMANDS if "hvdtrain run " in c])
def test_its_runs_are_understood(command):
    words = words_of(command)
    start = len(words) - 1 - words[::-1].index("run")
    assert words[start - 1] == "hvdtrain"
    assert read_command(words[start + 1 :]).recipe in {"digits", "bytelm", "my_recipe.py"}


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("hvdtrain launch")])
def test_its_launches_are_understood(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = words_of(command)
    dry = words[1:] if "--dry-run" in words else [words[1], "--dry-run", *words[2:]]
    assert main(dry) == 0
    assert "mpirun" in capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("hvdtrain")])
def test_its_verbs_exist(command):
    assert words_of(command)[1] in VERBS


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:scripts|hostfiles|docs)/[\w./-]+\w", README))))
def test_files_that_it_names_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bhvdtrain\.(\w+)\(", README))))
def test_names_that_it_calls_exist(name):
    assert hasattr(hvdtrain, name)


def test_its_python_can_be_compiled():
    for kind, block in BLOCKS:
        if kind == "python":
            compile(block, "README", "exec")
