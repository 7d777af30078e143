"""digits by every exchange over two hosts: to 0.97, and from a checkpoint in its middle to the same bits.

By default some exchanges have one number of ranks each; `--full` is each exchange on 2, 3 and 4.
"""

import json
from dataclasses import dataclass, field

import pytest
from local_cluster import DATA_NETWORK

HOSTS = {2: "node1:1,node2:1", 3: "node1:2,node2:1", 4: "node1:2,node2:2"}
EPOCHS = 8
MIDDLE = 90  # of 184 steps, and between two averages of local_sgd
GOAL = 0.97


@dataclass(frozen=True)
class Exchange:
    """One way to exchange gradients; `size` is that of the short form, which leaves out those without one."""

    name: str
    size: int | None
    settings: dict = field(default_factory=dict)
    deterministic: bool = True


SERVER = {"strategy": "parameter_server"}
EXCHANGES = [
    Exchange("powersgd", 2, {"compression": "powersgd"}),
    Exchange("fp16", None, {"compression": "fp16"}),
    Exchange("shared_memory", 4, {"strategy": "shared_memory"}),
    Exchange("local_sgd", 4, {"strategy": "local_sgd"}),
    Exchange("servers_beside_workers", None, SERVER),
    Exchange("a_server_of_its_own", 3, {**SERVER, "servers": 1}),
    Exchange("asynchronous", 2, {**SERVER, "asynchronous": "true"}, deterministic=False),
    Exchange("an_asynchronous_server", None, {**SERVER, "asynchronous": "true", "servers": 1}, deterministic=False),
]


def pytest_generate_tests(metafunc):
    if "exchange" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        cases = [(exchange, size) for exchange in EXCHANGES for size in HOSTS if full or size == exchange.size]
        ids = [f"{exchange.name}-{size}" for exchange, size in cases]
        metafunc.parametrize(("exchange", "size"), cases, ids=ids)


@pytest.fixture
def train(cluster, environment, tmp_path):
    """A function that trains digits, or goes on with it, and gives the summary of the run."""

    def train(exchange, size, *options):
        settings = [word for name, value in exchange.settings.items() for word in (f"--sync.{name}", str(value))]
        launch = ["hvdtrain", "launch", "--no-preflight", "-H", HOSTS[size], "--network", DATA_NETWORK]
        saves = ["--checkpoint.every_steps", str(MIDDLE), "--data.ledger", "true"]
        training = ["hvdtrain", "run", "digits", "--run-dir", str(tmp_path / "run"), "--train.epochs", str(EPOCHS)]
        command = [*launch, "--", *training, *settings, *saves, *options]
        done = cluster.run("head", command, env={**environment, "OMP_NUM_THREADS": "1"}, limit_s=150)
        assert done.returncode == 0, done.stdout + done.stderr
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (summary["size"], summary["stopped_by"]) == (size, "completed")
        return summary

    return train


def test_digits_over_two_hosts_and_on_from_its_middle(exchange, size, train, cluster, environment, tmp_path):
    whole = train(exchange, size)
    assert whole["eval"]["accuracy"] >= GOAL
    resumed = train(exchange, size, "--resume", str(MIDDLE))
    assert (resumed["resumed_from"], resumed["steps"]) == (MIDDLE, whole["steps"])
    assert resumed["eval"]["accuracy"] >= GOAL
    if exchange.deterministic:
        assert resumed["weights_sha256"] == whole["weights_sha256"]
    audit = cluster.run("head", ["hvdtrain", "audit", str(tmp_path / "run")], env=environment)
    assert audit.returncode == 0, audit.stdout + audit.stderr
