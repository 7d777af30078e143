"""MPICH's Hydra starts a small program, with binding, environment and hosts right.

MPICH gets an environment of its own, so that no other test meets its mpiexec; `HVDTRAIN_MPICH_ENV` names one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_launchers import HELLO, TWO_HOSTS, facts


@pytest.fixture(scope="module")
def mpich(tmp_path_factory):
    """The folder of programs of an environment that holds MPICH and mpi4py."""
    if given := os.environ.get("HVDTRAIN_MPICH_ENV"):
        return Path(given) / "bin"
    venv = tmp_path_factory.mktemp("mpich")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install = [venv / "bin" / "pip", "install", "--quiet", "mpich==5.0.2", "mpi4py==4.1.2"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        pytest.skip(f"MPICH cannot be installed here: {done.stderr[-500:]}")
    return venv / "bin"


@pytest.fixture
def launch(cluster, environment, mpich):
    """Launch the small program with MPICH first on PATH."""
    env = {**environment, "PATH": f"{mpich}:{environment['PATH']}", "MINE": "a b", "MY_TOKEN": "hush"}

    def launch(*words, host="head"):
        names = ["MINE", "MY_TOKEN", "MPIR_CVAR_POLLS_BEFORE_YIELD"]
        command = ["hvdtrain", "launch", "--no-preflight", *words, "--", str(mpich / "python"), HELLO, "0", *names]
        return facts(cluster.run(host, command, env=env))

    return launch


def test_four_ranks_on_this_host(launch):
    found = launch("-np", "4")
    assert [one["rank"] for one in found] == [0, 1, 2, 3]
    assert all(one["size"] == 4 and "MPICH" in one["library"] for one in found)
    assert all(one["variables"]["MPIR_CVAR_POLLS_BEFORE_YIELD"] == "1" for one in found)
    assert all(one["cores"] == len(os.sched_getaffinity(0)) for one in found), "bound"


def test_four_ranks_on_two_hosts(launch):
    found = launch(*TWO_HOSTS, "--env", "M*")
    assert [one["host"] for one in found] == ["node1", "node1", "node2", "node2"]
    expected = {"MINE": "a b", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
    assert all(one["variables"] == expected for one in found)
