"""On a disk of one and a half checkpoints the second save fails, the first still loads; policy says what follows."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ["unshare", "--mount", "--propagation", "private"]


@pytest.fixture
def on_small_disk(tmp_path):
    """A function that trains under a policy, in a mount namespace that ends with it, and gives the report."""
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed")
    namespace = NAMESPACE if os.geteuid() == 0 else [*NAMESPACE, "--map-root-user"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not have a mount namespace")

    def train(policy):
        argv = [*namespace, sys.executable, Path(__file__).with_name("small_disk.py"), tmp_path / "run", policy]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        assert report["free_bytes"] < report["checkpoint_bytes"]  # the fault was there
        assert "No space left on device" in report["output"]
        return report

    yield train
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_under_warn_training_goes_on_and_the_old_checkpoint_stays(on_small_disk):
    report = on_small_disk("warn")
    assert report["before"] == report["after"]
    assert report["before"][0] == 2
    assert report["names"] == ["step-00000002"]
    assert (report["status"], report["summary"]["steps"]) == (0, 6)
    for step in (4, 6):
        assert f"no checkpoint at step {step}, training goes on without it" in report["output"]


def test_under_fail_training_stops_with_status_1_and_the_old_checkpoint_stays(on_small_disk):
    report = on_small_disk("fail")
    assert report["before"] == report["after"]
    assert report["names"] == ["step-00000002"]
    assert (report["status"], report["summary"]["steps"]) == (1, 2)
    assert "save a checkpoint at step 4" in report["output"]
