"""Predictions fitted on two hosts, against real runs on three and four of them, over links of a given rate.

Speed is measured here and not asserted: `pytest -s` shows how far each prediction was off.
"""

import json
from pathlib import Path

import pytest
from conftest import user_environment
from local_cluster import Cluster, missing

RECIPE = str(Path(__file__).with_name("wide_recipe.py"))
NETWORK = ["--network", "10.78.0.0/24"]
WIDTHS = {"100mbit": "512", "300mbit": "724", "1gbit": "1024"}  # about 80, 60 and 30 ms for one buffer one way


@pytest.fixture(scope="module")
def four_hosts(tmp_path_factory):
    if fault := missing(slurm=False):
        pytest.skip(fault)
    with Cluster.up(tmp_path_factory.mktemp("four"), nodes=4) as running:
        yield running


def pytest_generate_tests(metafunc):
    if "rate" in metafunc.fixturenames:
        metafunc.parametrize("rate", WIDTHS if metafunc.config.getoption("--full") else ["1gbit"])


def test_more_hosts_are_foretold_and_compared(four_hosts, rate, full, tmp_path):
    env = {**user_environment(), "OMP_NUM_THREADS": "1", "HVDTRAIN_TEST_WIDTH": WIDTHS[rate]}
    four_hosts.shape(rate)
    profile = tmp_path / "wide.profile"
    hosts = ["-H", "node1:1,node2:1", *NETWORK, "--cores", "2", "--shared", str(tmp_path)]
    effort = ["--starts", "3" if full else "1", "--steps", "24" if full else "10"]
    words = ["hvdtrain", "predict", RECIPE, "--ranks", "3,4", *hosts, *effort, "--json", "--out", str(profile)]
    done = four_hosts.run("head", words, env=env, limit_s=400)
    assert done.returncode == 0, done.stderr
    foretold = json.loads(done.stdout)["forecasts"]
    for size in (3, 4) if full else (3,):
        run_dir = tmp_path / f"run{size}"
        listed = ",".join(f"{name}:1" for name in four_hosts.nodes[:size])
        launch = ["hvdtrain", "launch", "--no-preflight", "-np", str(size), "-H", listed, *NETWORK, "--"]
        run = ["hvdtrain", "run", RECIPE, "--profile", str(profile), "--train.steps", "24", "--run-dir", str(run_dir)]
        done = four_hosts.run("head", [*launch, *run], env=env, limit_s=200)
        assert done.returncode == 0, done.stderr
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["predicted_ms_per_step"] == foretold[str(size)]["ms_per_step"]
        assert summary["ms_per_step"] > 0
        (said,) = (line for line in (done.stdout + done.stderr).splitlines() if " predicted, " in line)
        print(f"{rate}, {size} ranks: {said}")
