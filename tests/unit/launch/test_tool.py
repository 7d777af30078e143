"""The flavour of a launcher is read from its own version output, as the tools really print it."""

import os

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch.tool import find_tool, identify

OUTPUTS = {
    "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n": ("openmpi", (5, 0, 11)),
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n": ("openmpi", (4, 1, 4)),
    "mpirun (Open MPI) 4.1.7rc1\n": ("openmpi", (4, 1, 7)),
    "HYDRA build details:\n    Version:                                 4.2.3\n    Release Date: ...": (
        "hydra",
        (4, 2, 3),
    ),
    "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n": ("intel", (2021, 9)),
    "slurm 22.05.8\n": ("slurm", (22, 5, 8)),
    "slurm-wlm 23.11.4\n": ("slurm", (23, 11, 4)),
    "0.28.1\n": ("horovod", (0, 28, 1)),
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_flavour_and_version(output):
    assert identify(output) == OUTPUTS[output]


@pytest.mark.parametrize("output", ["", "mpirun: command not found", "version 1", "5"])
def test_unknown_output_is_no_launcher(output):
    assert identify(output) is None


@pytest.fixture
def stray(tmp_path):
    path = tmp_path / "mpirun"
    path.write_text("#!/bin/sh\necho 'a wrapper of our site'\n")
    path.chmod(0o755)
    return path


def test_an_unknown_tool_is_refused_with_what_it_said(stray):
    with pytest.raises(LaunchError) as caught:
        find_tool("mpirun", {"PATH": f"{stray.parent}:{os.defpath}"})
    assert "a wrapper of our site" in caught.value.found


def test_a_missing_tool_is_none(tmp_path):
    assert find_tool("mpirun", {"PATH": str(tmp_path)}) is None
