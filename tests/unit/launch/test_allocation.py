"""The hosts of SLURM, PBS and LSF jobs are read from the environment that those systems really set."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import HostFileError
from hvdtrain.launch.allocation import allocation, lsf_hosts, slurm_hosts

HOSTFILES = Path(__file__).parents[3] / "hostfiles"

# A batch step of SLURM 22.05 on two hosts, shortened to what is read.
BATCH_STEP = {
    "SLURM_JOB_ID": "5",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
}


def variables(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def shown(env):
    given = allocation(env)
    return given.system, [(host.name, host.slots) for host in given.hosts]


def test_slurm():
    assert shown(BATCH_STEP) == ("SLURM", [("node1", 1), ("node2", 1)])
    assert shown(variables(HOSTFILES / "slurm.env")) == (
        "SLURM",
        [("node1", 2), ("node2", 2), ("node3", 2), ("big7", 1)],
    )


def test_pbs():
    assert shown({"PBS_NODEFILE": str(HOSTFILES / "list.txt")}) == ("PBS", [("gpu01", 2), ("gpu02", 2)])


def test_lsf():
    assert shown(variables(HOSTFILES / "lsf.env")) == ("LSF", [("hostA", 4), ("hostB", 2)])


def test_outside_of_a_batch_job():
    assert allocation({"PATH": "/bin"}) is None


@pytest.mark.parametrize("tasks", ["", "2", "2(x3)", "x", "2(x)", "0(x2)", "1(x999999)", "1,٢"])
def test_counts_that_do_not_fit_the_hosts_are_refused(tasks):
    with pytest.raises(HostFileError, match="SLURM"):
        slurm_hosts("node[1-2]", tasks)


@pytest.mark.parametrize("text", ["hostA", "hostA 4 hostB", "hostA four", "-x 4"])
def test_lsf_that_is_not_pairs_is_refused(text):
    with pytest.raises(HostFileError):
        lsf_hosts(text)


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_variables_raise_anything_but_our_own_error(first, second):
    for read in (lambda: slurm_hosts(first, second), lambda: lsf_hosts(first)):
        try:
            assert read()
        except HostFileError:
            continue


@given(st.lists(st.integers(1, 99), min_size=1, max_size=20))
def test_slurm_counts_come_back_unchanged(counts):
    hosts = slurm_hosts(f"n[1-{len(counts)}]", ",".join(map(str, counts)))
    assert [host.slots for host in hosts] == counts
