"""The loop around the decision is run with real processes: it starts again, stops, and says the first failure last."""

import os
import signal
import sys

from hvdtrain.launch.aftermath import Policy
from hvdtrain.launch.spec import Invocation, LaunchSpec, Option
from hvdtrain.launch.supervisor import supervise

SPEC = LaunchSpec(command=("hvdtrain", "run", "digits"), size=4, cores_per_host=2)

COUNTING = """
import os, pathlib, sys
path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text() + "x" if path.exists() else "x")
statuses = [int(word) for word in sys.argv[2].split(",")]
print("srun: error: node7: task 3: Killed", file=sys.stderr)
os._exit(statuses[len(path.read_text()) - 1])
"""


def supervised(tmp_path, statuses, policy):
    said = []

    def build(spec, env):
        arguments = ("-c", COUNTING, str(tmp_path / "attempts"), statuses)
        return Invocation(program=sys.executable, options=(Option(arguments, "test"),), command=())

    status = supervise(SPEC, policy, build=build, env=os.environ, watched=False, say=said.append)
    return status, len((tmp_path / "attempts").read_text()), said


def test_it_runs_until_it_is_done(tmp_path):
    status, attempts, said = supervised(tmp_path, "75,1,0", Policy(max_restarts=3))
    assert (status, attempts) == (0, 3)
    assert "stopped with a checkpoint" in said[0]


def test_the_first_failure_is_said_last(tmp_path):
    status, attempts, said = supervised(tmp_path, "3,3", Policy(max_restarts=1))
    assert (status, attempts) == (3, 2)
    assert said[-1] == "hvdtrain: the first failure: rank 3 on node7 Killed"


def test_without_restarts_the_status_is_passed_on(tmp_path):
    assert supervised(tmp_path, "75", Policy())[:2] == (75, 1)


def test_ranks_that_wait_for_one_that_failed_are_ended():
    code = "import sys, time; print('srun: error: node7: task 3: Killed', file=sys.stderr, flush=True); time.sleep(60)"
    said = []
    status = supervise(
        SPEC,
        Policy(straggle_s=0.5),
        build=lambda spec, env: Invocation(program=sys.executable, options=(Option(("-c", code), "x"),), command=()),
        env=os.environ,
        watched=False,
        say=said.append,
    )
    assert status == 128 + signal.SIGTERM
    assert said[0].startswith("hvdtrain: rank 3 on node7 Killed, and the other ranks have not ended")
    assert said[-1] == "hvdtrain: the first failure: rank 3 on node7 Killed"
