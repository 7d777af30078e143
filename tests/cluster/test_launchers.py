"""One plain MPI program through every launcher over two real hosts: right sizes, places, environment and network."""

import json
import shutil
from pathlib import Path

import pytest

HELLO = str(Path(__file__).with_name("hello.py"))
PAYLOAD_BYTES = 4_000_000
TWO_HOSTS = ["-np", "4", "-H", "node1:2,node2:2"]


def facts(done):
    lines = [line for line in done.stdout.splitlines() if "FACTS " in line]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 1, f"not one job of all ranks: {done.stdout}{done.stderr}"
    return json.loads(lines[0].partition("FACTS ")[2])


def launch(cluster, environment, *words, host="head", payload=0, names=()):
    command = ["hvdtrain", "launch", "--no-preflight", *words, "--", "python", HELLO, str(payload), *names]
    return cluster.run(host, command, env=environment, limit_s=60)


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "srun"])
def test_four_ranks_on_two_hosts_are_one_job(cluster, environment, launcher):
    env = {**environment, "MINE": "a b", "MY_TOKEN": "hush", "OMP_NUM_THREADS": "1"}
    options = [*TWO_HOSTS, "--launcher", launcher, "--env", "M*"]
    found = facts(launch(cluster, env, *options, names=["MINE", "MY_TOKEN", "OMP_NUM_THREADS"]))
    assert [(one["rank"], one["size"], one["host"]) for one in found] == [
        (0, 4, "node1"),
        (1, 4, "node1"),
        (2, 4, "node2"),
        (3, 4, "node2"),
    ]
    assert all(one["variables"] == {"MINE": "a b", "OMP_NUM_THREADS": "1"} for one in found)
    assert all(one["cores"] == found[0]["cores"] > 0 for one in found), "bound to a single core"


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_traffic_takes_the_given_network(cluster, environment, launcher):
    before = {name: cluster.received_bytes("node2", name) for name in ("eth0", "data2")}
    options = [*TWO_HOSTS, "--launcher", launcher, "--network", "10.78.0.0/24"]
    found = facts(launch(cluster, environment, *options, payload=PAYLOAD_BYTES, names=["HVDTRAIN_NETWORK"]))
    after = {name: cluster.received_bytes("node2", name) for name in ("eth0", "data2")}
    assert all(one["variables"] == {"HVDTRAIN_NETWORK": "10.78.0.0/24"} for one in found)
    assert after["data2"] - before["data2"] > PAYLOAD_BYTES
    assert after["eth0"] - before["eth0"] < PAYLOAD_BYTES / 4


def test_without_a_network_it_may_take_any(cluster, environment):
    """The counter-proof: left to itself, the MPI does use the first network for some of it, or all."""
    before = cluster.received_bytes("node2", "eth0")
    facts(launch(cluster, environment, *TWO_HOSTS, payload=PAYLOAD_BYTES, names=[]))
    assert cluster.received_bytes("node2", "eth0") - before > PAYLOAD_BYTES / 4


def test_inside_an_allocation_srun_is_the_default_and_takes_its_hosts(cluster, environment):
    command = ["salloc", "-Q", "-N", "2", "-n", "3", "hvdtrain", "launch", "--no-preflight", "--", "python", HELLO, "0"]
    found = facts(cluster.run("head", command, env=environment))
    assert sorted(one["host"] for one in found) == ["node1", "node1", "node2"]
    shown = cluster.run("head", [*command[:8], "--dry-run", *command[8:]], env=environment).stdout
    assert "# chosen: srun, as this is SLURM job" in shown


def test_uneven_slots_go_through_srun(cluster, environment):
    found = facts(launch(cluster, environment, "-np", "3", "-H", "node1:1,node2:2", "--launcher", "srun"))
    assert [one["host"] for one in found] == ["node1", "node2", "node2"]


def test_a_host_file_and_a_user(cluster, environment, tmp_path):
    (tmp_path / "hosts").write_text("# ours\r\nroot@node[2-3] slots=1\r\n")
    found = facts(launch(cluster, environment, "--hostfile", str(tmp_path / "hosts")))
    assert [one["host"] for one in found] == ["node2", "node3"]


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "srun"])
def test_the_status_of_the_job_is_passed_on(cluster, environment, launcher):
    command = ["hvdtrain", "launch", "--no-preflight", *TWO_HOSTS, "--launcher", launcher, "--", "sh", "-c", "exit 75"]
    assert cluster.run("head", command, env=environment).returncode == 75


def test_what_a_dry_run_prints_can_be_pasted(cluster, environment):
    for launcher in ("mpirun", "horovodrun", "srun"):
        shown = launch(cluster, environment, *TWO_HOSTS, "--launcher", launcher, "--dry-run").stdout
        assert len(facts(cluster.run("head", ["sh", "-c", shown], env=environment))) == 4


@pytest.fixture(scope="module")
def debian_mpi():
    """Debian's own Open MPI 4, beside the one that Horovod was built for."""
    if not Path("/usr/bin/mpirun").exists() or shutil.which("python3", path="/usr/bin") is None:
        pytest.skip("no second Open MPI: apt-get install openmpi-bin python3-mpi4py")
    return "/usr/bin:/bin:/usr/sbin:/sbin"


def test_open_mpi_4_of_debian(cluster, environment, debian_mpi):
    env = {**environment, "PATH": debian_mpi}
    program = ["/usr/bin/python3", HELLO, "0"]
    command = [
        shutil.which("hvdtrain", path=environment["PATH"]),
        "launch",
        "--no-preflight",
        *TWO_HOSTS,
        "--",
        *program,
    ]
    found = facts(cluster.run("head", command, env=env))
    assert [one["host"] for one in found] == ["node1", "node1", "node2", "node2"]
    assert all("Open MPI v4" in one["library"] for one in found)
