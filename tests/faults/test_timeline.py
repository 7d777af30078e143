"""What 200 steps send, by Horovod's own timeline: one grouped exchange each, with the signal in it, and nothing else.

The timeline has one entry for each tensor; those of a group are sent by one call, so they begin and end together.
"""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from faulty_job import MPIRUN, own_environment

PROGRAM = """
import sys, torch, hvdtrain
from torch import nn
from hvdtrain.config import SentinelConfig
from hvdtrain.runtime import init
from hvdtrain.sync import prepare

with init(seed=1) as run:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sync = prepare(run, model, optimizer, metrics=("accuracy",), sentinel=SentinelConfig(every_steps=20))
    run.collectives.barrier()
    import horovod.torch as hvd
    hvd.start_timeline(sys.argv[1], mark_cycles=False)
    run.collectives.barrier()
    for step in range(200):
        loss = model(torch.randn(4, 6)).pow(2).mean()
        sync.backward(loss, samples=4, metrics={"accuracy": 0.5})
        sync.update()
    hvd.stop_timeline()
"""


def events(path):
    text = path.read_text().rstrip().rstrip(",")
    return json.loads(text if text.endswith("]") else text + "]")


@pytest.fixture
def timeline(tmp_path):
    program, path = tmp_path / "steps.py", tmp_path / "timeline.json"
    program.write_text(PROGRAM)
    argv = [*MPIRUN, "-np", "2", "-x", "HOROVOD_TIMELINE=DYNAMIC", sys.executable, program, path]
    done = subprocess.run(argv, env=own_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return events(path)


def test_200_steps_are_200_grouped_exchanges_with_the_signal_in_them_and_nothing_else(timeline):
    names = {
        event["pid"]: event["args"]["name"]
        for event in timeline
        if event.get("name") == "process_name" and "name" in event["args"]
    }
    began = {}  # by tensor, when it was sent
    for event in timeline:
        if event.get("name") == "MPI_ALLREDUCE" and event["ph"] == "B":
            began.setdefault(names[event["pid"]], []).append(event["ts"])
    # four parameters and the signal, in the one group that is named for its first tensor
    assert set(began) == {f"grouped_allreduce.model.2.bias_{part}of5" for part in range(1, 6)}
    assert {name for name in names.values() if "hvdtrain.barrier" not in name} == set(began)
    assert {len(times) for times in began.values()} == {200}
    steps = list(zip(*began.values(), strict=True))  # (steps, tensors)
    assert all(max(now) < min(then) for now, then in pairwise(steps))  # all tensors of a step are sent before the next
