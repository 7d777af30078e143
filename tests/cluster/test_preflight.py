"""Hosts that differ or do not answer are named before a rank starts; faked is only one host's view of its files."""

import importlib.util
import time
from pathlib import Path

import pytest

HOSTS = ["-np", "3", "-H", "node1:1,node2:1,node3:1"]
PROGRAM = ["python", "-c", "print('a rank started')"]


def launch(cluster, environment, *options, command=PROGRAM):
    began = time.monotonic()
    done = cluster.run("head", ["hvdtrain", "launch", *HOSTS, *options, "--", *command], env=environment, limit_s=60)
    return done, time.monotonic() - began


def folder_of(package):
    return Path(importlib.util.find_spec(package).origin).parent


@pytest.fixture
def fake(cluster, tmp_path):
    """Put other files over some of node3's, for itself alone, and take them away again."""
    mounted = []

    def fake(over, content):
        if content is None:
            other = tmp_path / "empty"
            other.mkdir()
        else:
            other = tmp_path / "other"
            other.write_text(content)
        assert cluster.run("node3", ["mount", "--bind", str(other), str(over)]).returncode == 0
        mounted.append(over)

    yield fake
    for over in mounted:
        cluster.run("node3", ["umount", str(over)])


@pytest.mark.parametrize("launcher", ["mpirun", "srun", "horovodrun"])
def test_hosts_that_are_alike_start(cluster, environment, launcher):
    done, _ = launch(cluster, environment, "--launcher", launcher)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a rank started") == 3


def test_another_torch_version(cluster, environment, fake):
    fake(folder_of("torch") / "version.py", "__version__ = '2.6.0'\n")
    done, _ = launch(cluster, environment)
    assert done.returncode == 2
    assert "node3  torch  2.6.0  the other 2 have" in done.stderr
    assert "node1" not in done.stderr.partition("found:")[2]
    assert "a rank started" not in done.stdout


def test_a_missing_module(cluster, environment, fake):
    fake(folder_of("horovod"), None)
    done, _ = launch(cluster, environment, command=["hvdtrain", "run", "digits"])
    assert done.returncode == 2
    assert "node3  horovod  is missing  the other 2 have 0.28.1" in done.stderr


def test_an_older_hvdtrain(cluster, environment, fake):
    fake(folder_of("hvdtrain") / "__init__.py", '__version__ = "0.0.9"\n')
    done, _ = launch(cluster, environment)
    assert done.returncode == 2
    assert "node3  hvdtrain  0.0.9  the other 2 have" in done.stderr


def test_no_preflight_skips_it(cluster, environment, fake):
    fake(folder_of("torch") / "version.py", "__version__ = '2.6.0'\n")
    done, _ = launch(cluster, environment, "--no-preflight")
    assert done.returncode == 0
    assert done.stdout.count("a rank started") == 3


def test_a_program_that_one_host_lacks(cluster, environment, tmp_path):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mine"
    program.write_text("#!/bin/sh\necho a rank started\n")
    program.chmod(0o755)
    (tmp_path / "empty").mkdir()
    assert cluster.run("node2", ["mount", "--bind", str(tmp_path / "empty"), str(tmp_path / "bin")]).returncode == 0
    try:
        done, _ = launch(cluster, environment, command=[str(program)])
    finally:
        cluster.run("node2", ["umount", str(tmp_path / "bin")])
    assert done.returncode == 2
    assert "node2  program  is missing" in done.stderr


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_an_unreachable_host_is_named_with_the_reason(own_cluster, environment, launcher):
    own_cluster.cut("node2")
    done, took_s = launch(own_cluster, environment, "--launcher", launcher)
    assert done.returncode == 2
    assert took_s < 15
    assert "node2  reachable  no  ssh: connect to host node2 port 22: " in done.stderr
    assert "node1  reachable" not in done.stderr
    assert "a rank started" not in done.stdout


def test_an_unknown_name_and_a_refused_key(own_cluster, environment):
    unknown = own_cluster.directory / "ssh" / "known_hosts"
    unknown.write_text(unknown.read_text().replace("node3", "other"))
    done, took_s = launch(own_cluster, environment, "-H", "node1:1,nowhere:1,node3:1")
    assert done.returncode == 2
    assert took_s < 15
    assert "nowhere  reachable  no  ssh: Could not resolve hostname nowhere" in done.stderr
    assert "node3    reachable  no  Host key verification failed." in done.stderr
