"""What launchers promise, on environments that they really set."""

from pathlib import Path

import pytest

from hvdtrain.topology import LAUNCHERS, SOLO, Topology, detect, promise_of

BATCH_STEP = """
SLURM_JOB_ID=5
SLURM_JOB_NODELIST=node[1-2]
SLURM_LOCALID=0
SLURM_NNODES=2
SLURM_NODEID=0
SLURM_NTASKS=2
SLURM_PROCID=0
SLURM_TASKS_PER_NODE=1(x2)
"""  # of a real batch script under SLURM 22.05, two tasks on two nodes, before any srun


def env_of(text):
    return dict(line.split("=", 1) for line in text.split())


def test_a_process_started_by_itself_has_no_promise():
    assert detect({"PATH": "/bin", "HOME": "/root"}) is None


@pytest.mark.parametrize("launcher", [row for row in LAUNCHERS if row.size], ids=lambda row: row.name)
def test_each_launcher_is_recognised_by_its_own_variables(launcher):
    env = {launcher.rank: "2", launcher.size: "4"}
    if launcher.local_rank:
        env[launcher.local_rank] = "1"
    if launcher.marker:
        env[launcher.marker] = "7"
    promise = promise_of(launcher, env)
    assert (promise.rank, promise.size, promise.source) == (2, 4, f"{launcher.size}=4")
    assert promise.local_rank == (1 if launcher.local_rank else None)


def test_a_batch_script_is_told_from_a_step_of_srun():
    batch = detect(env_of(BATCH_STEP))
    assert (batch.launcher, batch.size) == ("sbatch script or salloc shell", 2)
    step = detect(env_of(BATCH_STEP) | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"})
    assert (step.launcher, step.rank, step.size) == ("srun", 1, 2)


def test_the_innermost_launcher_is_meant():
    """An mpirun inside an sbatch script sets its variables around those of SLURM."""
    env = env_of(BATCH_STEP) | {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert detect(env).source == "OMPI_COMM_WORLD_SIZE=4"


@pytest.mark.parametrize("text", ["", "-1", "four", "1.0", "٣"])
def test_what_is_no_whole_number_promises_nothing(text):
    assert detect({"OMPI_COMM_WORLD_RANK": text, "OMPI_COMM_WORLD_SIZE": "4"}) is None


def test_only_rank_zero_is_root():
    assert SOLO.is_root
    assert not Topology(rank=1, size=2, local_rank=1, local_size=2, cross_rank=0, cross_size=1).is_root


def test_the_words_of_others_are_used_nowhere_else():
    """The table is the one place that knows them."""
    package = Path(__file__).parents[2] / "hvdtrain"
    for path in package.rglob("*.py"):
        if path.name != "topology.py":
            words = set(path.read_text().replace("(", " ").replace(".", " ").replace(",", " ").split())
            assert not words & {"world_size", "node_rank", "master_addr", "WORLD_SIZE"}, path
