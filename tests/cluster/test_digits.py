"""digits to 0.97 over two hosts with two ranks each: through every launcher, and through every example in scripts/."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
TWO_HOSTS = "node1:2,node2:2"
QUICK = ["--train.epochs", "5"]


def reached(run_dir, size=4):
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["size"] == size
    assert summary["stopped_by"] == "completed"
    assert summary["eval"]["accuracy"] >= 0.97
    return summary


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "srun"])
def test_launch(cluster, environment, tmp_path, launcher):
    # horovodrun takes names of interfaces only, and the head's is another than the nodes'
    network = [] if launcher == "horovodrun" else ["--network", "10.77.0.0/24"]
    command = ["hvdtrain", "launch", "-np", "4", "-H", TWO_HOSTS, "--launcher", launcher, *network]
    training = ["hvdtrain", "run", "digits", "--run-dir", str(tmp_path / "run"), *QUICK]
    done = cluster.run("head", [*command, "--", *training], env=environment, limit_s=150)
    assert done.returncode == 0, done.stdout + done.stderr
    reached(tmp_path / "run")


EXAMPLES = {
    "mpirun/one-host": ([], 2),
    "mpirun/two-hosts": ([TWO_HOSTS], 4),
    "mpirun/supervised": (["HOSTFILE"], 4),
    "horovodrun/one-host": ([], 2),
    "horovodrun/two-hosts": ([TWO_HOSTS], 4),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(cluster, environment, tmp_path, name):
    arguments, size = EXAMPLES[name]
    (tmp_path / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    words = [str(tmp_path / "hosts") if word == "HOSTFILE" else word for word in arguments]
    allowed = {f"{one}_ALLOW_RUN_AS_ROOT{end}": "1" for one in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    command = [str(SCRIPTS / name), *words, "--run-dir", str(tmp_path / "run"), *QUICK]
    done = cluster.run("head", command, env={**environment, **allowed}, limit_s=150)
    assert done.returncode == 0, done.stdout + done.stderr
    reached(tmp_path / "run", size)


BATCH = {
    "srun.sbatch": ["--run-dir", "run", *QUICK],
    "mpirun.sbatch": ["--run-dir", "run", *QUICK],
    "requeue.sbatch": [],
}


@pytest.mark.parametrize("name", BATCH)
def test_batch_example(cluster, environment, tmp_path, name):
    submit = ["sbatch", "--wait", f"--chdir={tmp_path}", f"--output={tmp_path}/log", str(SCRIPTS / "slurm" / name)]
    done = cluster.run("head", [*submit, *BATCH[name]], env=environment, limit_s=200)
    assert done.returncode == 0, (tmp_path / "log").read_text() + done.stderr
    reached(tmp_path / ("run" if BATCH[name] else "runs/digits"))


def test_a_submitted_script_with_a_prologue(cluster, environment, tmp_path):
    options = ["-N", "2", "--ntasks-per-node", "2", "--prologue", str(SCRIPTS / "slurm" / "site.sh")]
    training = ["hvdtrain", "run", "digits", "--run-dir", str(tmp_path / "run"), *QUICK]
    text = cluster.run(
        "head", ["hvdtrain", "sbatch", *options, "--output", str(tmp_path / "log"), "--", *training], env=environment
    )
    assert "export OMP_PROC_BIND=false" in text.stdout
    (tmp_path / "job").write_text(text.stdout)
    done = cluster.run("head", ["sbatch", "--wait", str(tmp_path / "job")], env=environment, limit_s=200)
    assert done.returncode == 0, (tmp_path / "log").read_text() + done.stderr
    reached(tmp_path / "run")
