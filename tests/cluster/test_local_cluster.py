"""The test hosts are hosts, and leave nothing behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_cluster import missing

SCRIPT = Path(__file__).parents[2] / "scripts" / "local-cluster"


def test_each_host_has_its_own_name_network_and_processes(cluster):
    for name in cluster.nodes:
        assert cluster.run("head", ["ssh", name, "hostname"]).stdout == f"{name}\n"
        processes = cluster.run(name, ["ps", "-eww", "-o", "args="]).stdout
        assert "host_init.py " + name in processes
        assert "slurmctld" not in processes
    assert cluster.run("node1", ["ls", "/dev/shm"]).stdout == ""


def test_slurm_starts_ranks_on_two_hosts(cluster):
    done = cluster.run("head", ["srun", "-N", "2", "-n", "4", "hostname"])
    assert sorted(done.stdout.split()) == ["node1", "node1", "node2", "node2"], done.stderr


def test_an_unknown_host_key_is_refused_by_the_users_own_policy(cluster):
    done = cluster.run("node1", ["ssh", "-o", "BatchMode=yes", "-o", "HostKeyAlias=other", "node2", "true"])
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_host_that_is_cut_off_is_not_reached(own_cluster):
    ping = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=1", "node2", "true"]
    assert own_cluster.run("head", ping).returncode == 0
    own_cluster.cut("node2")
    assert own_cluster.run("head", ping).returncode == 255
    assert "host_init.py node2" in own_cluster.run("node2", ["ps", "-eww", "-o", "args="]).stdout
    own_cluster.mend("node2")
    own_cluster.wait(ping)


def alive(pid):
    return Path(f"/proc/{pid}").exists()


def test_everything_goes_away(own_cluster):
    sleeper = own_cluster.start("node1", ["sleep", "300"])
    pids = list(own_cluster.pids.values())
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    assert "br0" not in links
    own_cluster.down()
    assert sleeper.wait(timeout=10) != 0
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, pids))
    sleeper.stdout.close()
    sleeper.stderr.close()


@pytest.mark.skipif(bool(missing(slurm=False)), reason=missing(slurm=False) or "everything is there")
def test_the_script_for_people(tmp_path):
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def script(*words):
        done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, env=env, timeout=60)
        return done.returncode, done.stdout, done.stderr

    try:
        assert script("up")[0] == 0
        assert "already" in script("up")[2]
        assert script("ssh", "node2", "hostname")[:2] == (0, "node2\n")
        assert script("ssh", "head", "ssh", "node3", "hostname")[:2] == (0, "node3\n")
        assert "no host node9" in script("ssh", "node9")[2]
    finally:
        assert script("down")[1] == "down\n"
    assert script("down")[1] == "there was nothing up\n"
