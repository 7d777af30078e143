"""The newest checkpoint of a run is damaged: `--resume auto` says so, takes the one before, and ends the same."""

import json
import shutil
import subprocess
import sys

import pytest

OPTIONS = ["--train.progress", "false", "--train.steps", "4", "--checkpoint.every_steps", "2"]


def train(run_dir, *options):
    """Exit status and output of one training of four steps."""
    argv = [sys.executable, "-m", "hvdtrain", "run", "digits", "--run-dir", run_dir, *OPTIONS, *options]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with the checkpoints of steps 2 and 4."""
    run_dir = tmp_path_factory.mktemp("damaged") / "run"
    status, output = train(run_dir)
    assert status == 0, output
    return run_dir


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def link(path):
    shutil.move(path, path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


@pytest.mark.parametrize(
    ("damage", "name", "reason"),
    [
        (flip, "model.safetensors", "SHA-256 differs"),
        (truncate, "state.json", "bytes long, not"),
        (link, "optimizer.safetensors", "symbolic links"),
        (flip, "manifest.json", "manifest.json"),
    ],
)
def test_the_one_before_is_taken_and_the_end_is_the_same(finished, tmp_path, damage, name, reason):
    shutil.copytree(finished, tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / "step-00000004" / name)
    status, output = train(tmp_path / "run", "--resume", "auto")
    assert status == 0, output
    assert "skipping the checkpoint" in output
    assert reason in output
    before, after = summary(finished), summary(tmp_path / "run")
    assert (before["resumed_from"], after["resumed_from"]) == (None, 2)
    assert after["weights_sha256"] == before["weights_sha256"]


def test_when_all_are_damaged_nothing_is_started_over(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    for step in (2, 4):
        flip(tmp_path / "run" / "checkpoints" / f"step-0000000{step}" / "model.safetensors")
    before = summary(tmp_path / "run")
    status, output = train(tmp_path / "run", "--resume", "auto")
    assert status == 1
    assert "none of them is valid: step 4: model.safetensors: its SHA-256 differs" in output
    assert "Traceback" not in output
    assert summary(tmp_path / "run") == before
