"""What compressed gradients take on the network between two hosts, by the counters of their interfaces."""

import json

from local_cluster import DATA_NETWORK

GRADIENTS_MB = 12.6 * 4  # what two ranks send each other of a model with 12.6 M parameters
ROUNDS = 2


def test_powersgd_sends_a_hundredth_and_fp16_half(cluster, environment):
    launch = ["hvdtrain", "launch", "-H", "node1:1,node2:1", "--network", DATA_NETWORK]
    program = ["python", "-m", "hvdtrain.diagnostics.compression", "--rounds", str(ROUNDS), "--steps", "1", "--json"]
    before = cluster.received_bytes("node2", "data2")
    done = cluster.run("head", [*launch, "--", *program], env={**environment, "OMP_NUM_THREADS": "1"}, limit_s=120)
    through_the_network = 1e-6 * (cluster.received_bytes("node2", "data2") - before)
    assert done.returncode == 0, done.stdout + done.stderr
    received = {side: of["received_mb"]["median"] for side, of in json.loads(done.stdout).items()}
    assert GRADIENTS_MB < received["none"] < 1.2 * GRADIENTS_MB
    assert GRADIENTS_MB / 2 < received["fp16"] < 0.6 * GRADIENTS_MB
    assert received["powersgd"] < received["none"] / 100
    assert through_the_network > ROUNDS * sum(received.values())
