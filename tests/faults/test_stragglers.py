"""50 ms in one phase of one rank are found: rank, host, phase and cost, in the log and in metrics.jsonl."""

import json
import socket
from collections import Counter

import pytest
from faulty_job import MPIRUN, run_faulty

MORE_STEPS = ["--train.epochs", "16", "--train.log_every", "8", "--checkpoint.every_steps", "4"]  # 64 steps
MORE_STEPS += ["--train.eval_every_epochs", "0"]


@pytest.mark.parametrize("phase", ["data", "forward", "save"])
def test_a_slow_phase_of_one_rank_is_named(phase, tmp_path):
    job = run_faulty([*MPIRUN, "-np", "2"], *MORE_STEPS, run_dir=tmp_path / "run", fault=("slow", phase, 1))
    assert job.fired
    assert (job.status, job.failure) == (0, None), job.stderr
    records = [record for record in job.records() if record["split"] == "train"]
    named = Counter((record["slowest_rank"], record["slowest_phase"]) for record in records)
    assert named.most_common(1)[0][0] == (1, phase), json.dumps(records, indent=1)
    costs = [record["slowest_cost_percent"] for record in records if record["slowest_phase"] == phase]
    assert max(costs) > 20
    assert {record["slowest_host"] for record in records} == {socket.gethostname()}
    assert f"rank 1 on {socket.gethostname()} is slowest, in {phase}; it costs" in job.stderr
