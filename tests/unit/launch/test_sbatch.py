"""The batch script is held whole by golden files, it is bash, and all faults come in one message."""

import subprocess
from dataclasses import replace

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.sbatch import BatchSpec, script

SMALL = BatchSpec(command=("hvdtrain", "run", "digits"), job_name="digits", path="/opt/venv/bin")
LARGE = replace(
    SMALL,
    command=("/opt/venv/bin/hvdtrain", "run", "my recipe.py", "--resume", "never"),
    nodes=16,
    ntasks_per_node=8,
    time="2-12",
    cpus_per_task=12,
    gpus_per_node=8,
    mem="400G",
    partition="gpu",
    account="physics",
    qos="high",
    constraint="ib",
    requeue=True,
    max_requeues=20,
    lead_s=300,
    directives=("--exclusive", "--mail-type=FAIL"),
    prologue="module purge\nmodule load cuda/12.4\n",
    launch_options=("--network", "10.1.0.0/16", "--env", "MY_*"),
)
SPECS = {"small": SMALL, "large": LARGE, "plain": replace(SMALL, command=("python", "train.py", "a b"), requeue=True)}


@pytest.mark.parametrize("name", SPECS)
def test_whole_script(golden, name):
    golden(f"sbatch/{name}.sbatch", script(SPECS[name]))


@pytest.mark.parametrize("name", SPECS)
def test_it_is_bash(name):
    subprocess.run(["bash", "-n"], input=script(SPECS[name]), text=True, check=True)


def test_all_faults_at_once():
    with pytest.raises(UsageError) as caught:
        replace(SMALL, nodes=0, time="soon", lead_s=1, job_name="a b", directives=("-x", "--a\nb"), gpus_per_node=0)
    found = caught.value.found
    for words in ("--nodes 0", "--time soon", "--lead 1", "'a b'", "'-x'", "--gpus-per-node 0"):
        assert words in found
    assert len(found.splitlines()) == 7


@pytest.mark.parametrize("time", ["90", "90:30", "1:30:00", "2-12", "2-12:30", "2-12:30:00"])
def test_every_form_of_time_that_sbatch_takes(time):
    assert f"#SBATCH --time={time}\n" in script(replace(SMALL, time=time))


def test_a_training_resumes_unless_it_was_told_otherwise():
    assert "hvdtrain run digits --resume auto &" in script(SMALL)
    assert script(LARGE).count("--resume") == 1
    assert "--resume" not in script(SPECS["plain"])


# SLURM and the launch, played: `squeue` and `scontrol` say what they were asked, `hvdtrain` ends with a given status.
STAGE = """
squeue() { echo RUNNING; }
scontrol() { echo "scontrol $*"; return 1; }
hvdtrain() { exec bash -c "$PLAY"; }
kill() { echo "passed $1"; builtin kill "$@"; }
"""


def played(play, restarts="0", **changes):
    text = STAGE + script(replace(SMALL, requeue=True, path="", max_requeues=2, **changes))
    env = {"PATH": "/bin:/usr/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts, "PLAY": play}
    env["SLURM_JOB_NODELIST"] = "node1"
    done = subprocess.run(["bash"], input=text, env=env, capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (2, False), (1, True), (75, True), (137, True)])
def test_the_status_decides_about_the_queue(status, requeued):
    code, shown = played(f"exit {status}")
    assert code == status
    assert ("scontrol requeue 7" in shown) == requeued


def test_the_cap_holds():
    code, shown = played("exit 1", restarts="2")
    assert code == 1
    assert "scontrol" not in shown
    assert "giving up" in shown


def test_the_signal_before_the_limit_reaches_the_launch_and_its_status_is_kept():
    play = "trap 'exit 75' USR1; sleep 0.2; kill -USR1 $PPID; while :; do sleep 0.01; done"
    code, shown = played(play)
    assert code == 75
    assert "passed -USR1" in shown


def test_the_end_by_slurm_is_waited_out_without_passing_it_on():
    play = "trap 'exit 1' USR1 TERM; kill -TERM $PPID; sleep 0.2; exit 75"
    code, shown = played(play)
    assert code == 75
    assert "passed" not in shown
