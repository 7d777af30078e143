"""The examples for clusters are shell, and those that `hvdtrain sbatch` could have written are what it writes."""

import subprocess
from pathlib import Path

import pytest

from hvdtrain.launch.sbatch import BatchSpec, script

SCRIPTS = Path(__file__).parents[3] / "scripts"
EXAMPLES = sorted(path for room in ("mpirun", "horovodrun", "slurm") for path in (SCRIPTS / room).iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_is_bash_and_says_what_it_is_for(path):
    subprocess.run(["bash", "-n", path], check=True)
    lines = path.read_text().splitlines()
    assert any(line.startswith("# ") for line in lines[:2])


def test_the_requeueing_script_is_what_the_verb_writes():
    batch = BatchSpec(
        command=("hvdtrain", "run", "digits"),
        job_name="digits",
        nodes=2,
        ntasks_per_node=2,
        time="1:00:00",
        requeue=True,
    )
    assert (SCRIPTS / "slurm" / "requeue.sbatch").read_text() == script(batch)


def test_the_prologue_goes_into_a_script():
    text = (SCRIPTS / "slurm" / "site.sh").read_text()
    assert text in script(BatchSpec(command=("true",), prologue=text))
