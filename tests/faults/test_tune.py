"""`hvdtrain tune` on real ranks with a tiny budget: it searches, compares, and its profile runs, whatever it says."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hvdtrain.profile import read

HVDTRAIN = [sys.executable, "-m", "hvdtrain"]


def hvdtrain(*words, cwd):
    done = subprocess.run([*HVDTRAIN, *words], cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_digits_are_tuned_and_run_with_what_was_found(tmp_path):
    effort = ["--candidates", "1", "--steps", "8", "--starts", "1"]
    done = hvdtrain("tune", "digits", "-np", "2", *effort, "--json", "--out", "d.profile", cwd=tmp_path)
    tree = json.loads(done.stdout)
    assert [text for text, _ in tree["rounds"][0]["ms_per_step"]].count("the defaults") == 1
    assert "ms per step: the defaults" in done.stderr
    assert not tree.get("proved"), "one start proves nothing"
    profile = read(tmp_path / "d.profile")
    assert profile.origin["ranks"] == 2
    assert profile.settings == {}
    words = ["--profile", "d.profile", "--", "hvdtrain", "run", "digits", "--train.steps", "8"]
    hvdtrain("launch", "-np", "2", *words, cwd=tmp_path)
    assert json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())["steps"] == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.profile", "runs"], "nothing else is left"


@pytest.mark.parametrize(
    ("words", "sign"),
    [
        (["tune", "digits", "--shared", "."], "hvdtrain-tune-*/hvdtrain-trial-*/run"),
        (["bench", "checkpoint", "--folder", "."], "hvdtrain-bench-*/checkpoints"),
    ],
)
def test_nothing_is_left_of_one_that_is_told_to_end(words, sign, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    compiled = tmp_path / "torch"  # torch makes a cache that outlives processes as soon as an optimizer is built
    env = {**os.environ, "TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(compiled)}
    with subprocess.Popen([*HVDTRAIN, *words], cwd=folder, stderr=subprocess.DEVNULL, env=env) as process:
        end_s = time.monotonic() + 60
        while not list(folder.glob(sign)):
            assert process.poll() is None
            assert time.monotonic() < end_s, f"no {sign} within a minute"
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []


def test_a_winner_is_followed_by_ranks(tmp_path):
    settings = {"sync.strategy": "shared_memory", "sync.bucket_bytes": 2**20}
    launch = {"binding": "none", "yielding": True, "variables": {"HOROVOD_CYCLE_TIME": "0.5"}}
    tree = {"hvdtrain_profile": 1, "settings": settings, "launch": launch}
    (tmp_path / "p").write_text(json.dumps(tree))
    words = ["--", "hvdtrain", "run", "digits", "--train.steps", "6", "--sync.bucket_bytes", "4096"]
    hvdtrain("launch", "-np", "2", "--profile", "p", *words, cwd=tmp_path)
    config = (tmp_path / "runs" / "digits" / "config.yaml").read_text()
    assert "strategy: shared_memory" in config
    assert "bucket_bytes: 4096" in config, "what was typed wins"
