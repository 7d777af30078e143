"""The hosts of a session of cluster tests, and what a test needs to start jobs on them."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_cluster import Cluster, missing

KEPT = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "HVDTRAIN_VENV", "PYTHONPATH")


@pytest.fixture(scope="session")
def cluster_directory():
    directory = Path(tempfile.mkdtemp(prefix="hvdtrain-cluster-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(cluster_directory):
    """Three hosts and a head with ssh and SLURM, for tests that leave them as they found them."""
    if fault := missing(slurm=True):
        pytest.skip(fault)
    with Cluster.up(cluster_directory, slurm=True) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path):
    """Three hosts with ssh alone, for a test that breaks them."""
    if fault := missing(slurm=False):
        pytest.skip(fault)
    with Cluster.up(tmp_path / "cluster") as running:
        yield running


def user_environment():
    """What a user's shell on the head has: the virtual environment first on PATH, and nothing of the test's own job."""
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**env, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}:/usr/sbin:/sbin"}


@pytest.fixture
def environment():
    return user_environment()
