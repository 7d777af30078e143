"""The test hosts are hosts, and leave nothing behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_cluster import burst_bytes, missing

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


RECEIVE = """
import socket, time
with socket.create_server(("", 7700)) as server:
    connection, _ = server.accept()
start, received = time.monotonic(), 0
while got := len(connection.recv(1 << 20)):
    received += got
print(received * 8 / (time.monotonic() - start))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7700)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def bits_per_s(cluster, sender, receiver, address, size):
    """The rate of one TCP stream, without headers, as its receiver sees it."""
    with cluster.start(receiver, ["python3", "-c", RECEIVE]) as receiving:
        cluster.wait(["sh", "-c", "ss -Hltn sport = 7700 | grep -q 7700"], host=receiver)
        assert cluster.run(sender, ["python3", "-c", SEND, address, str(size)]).returncode == 0
        out, err = receiving.communicate(timeout=30)
    assert not err
    return float(out)


def test_links_have_the_rate_that_they_are_given(own_cluster):
    first, second = "10.77.0.1", "10.78.0.2"
    unshaped = bits_per_s(own_cluster, "node1", "node2", second, 40_000_000)
    own_cluster.shape("100mbit")
    forth = bits_per_s(own_cluster, "node1", "node2", second, 8_000_000)  # on one network
    back = bits_per_s(own_cluster, "node2", "node1", first, 8_000_000)  # on the other
    from_head = bits_per_s(own_cluster, "head", "node1", first, 8_000_000)
    own_cluster.shape("20mbit")
    slower = bits_per_s(own_cluster, "node1", "node2", second, 2_000_000)
    own_cluster.shape(None)
    again = bits_per_s(own_cluster, "node1", "node2", second, 40_000_000)
    assert min(unshaped, again) > 200e6
    assert [forth, back, from_head] == [pytest.approx(95e6, rel=0.15)] * 3  # of each 1514 bytes 1448 are data
    assert slower == pytest.approx(19e6, rel=0.15)


@pytest.mark.parametrize("rate", ["", "100", "mbit", "0mbit", "fast", "1;2mbit"])
def test_a_rate_has_a_number_and_a_unit(rate):
    with pytest.raises(ValueError, match="such as 100mbit"):
        burst_bytes(rate)


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
        assert script("shape", "5mbit")[:2] == (0, "every link: 5mbit, each way\n")
        assert "rate 5Mbit" in script("ssh", "node3", "tc", "qdisc", "show", "dev", "data3")[1]
        assert "such as 100mbit" in script("shape", "5")[2]
        assert script("shape", "off")[0] == 0
        assert "tbf" not in script("ssh", "node3", "tc", "qdisc", "show", "dev", "data3")[1]
    finally:
        assert script("down")[1] == "down\n"
    assert script("down")[1] == "there was nothing up\n"
    assert "no hosts" in script("shape", "5mbit")[2]
