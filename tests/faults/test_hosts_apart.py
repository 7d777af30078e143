"""A rank that is stopped on another host, where no process id and no mapped file tells anything about it.

Each rank is given a host name of its own, so that nothing is known to be on the same host; what is left are the
heartbeats over MPI. The record files are still shared here, as on a cluster's file system.
"""

import os
import shutil

import pytest
from faulty_job import MPIRUN, run_faulty
from test_fault_matrix import GONE_S, STALL_S

APART = ["unshare", "--uts", "sh", "-c", 'hostname "host-$OMPI_COMM_WORLD_RANK" && exec "$@"', "sh"]


@pytest.mark.parametrize(("stopped", "teller"), [(2, 0), (0, 1)], ids=["the last", "root"])
def test_a_rank_stopped_on_another_host_is_named_by_root_or_its_deputy(stopped, teller, tmp_path):
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("host names of their own need unshare and root")
    launcher = [*MPIRUN, "-np", "3", *APART]
    job = run_faulty(launcher, run_dir=tmp_path / "run", fault=("stop", "forward", stopped))
    assert job.fired, job.stderr
    assert job.orphans == []
    assert job.status == 1
    failure = job.failure
    assert (failure["rank"], failure["host"], failure["phase"]) == (stopped, f"host-{stopped}", "forward")
    assert "no sign of life" in failure["reason"]
    assert failure["waiting"] == [rank for rank in range(3) if rank != stopped]
    assert failure["told_by"] == teller
    assert job.gone_s < GONE_S + STALL_S
