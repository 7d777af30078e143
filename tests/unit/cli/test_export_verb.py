"""`hvdtrain export` says what it wrote, and refuses with the status that its fault deserves."""

import json

import pytest
import torch

from hvdtrain.checkpoint.format import Snapshot
from hvdtrain.checkpoint.store import Store
from hvdtrain.cli import main
from hvdtrain.statetree import digest, flatten

STATE = {"weight": torch.tensor([1.0, 2.0])}


@pytest.fixture
def run_dir(tmp_path):
    snapshot = Snapshot(step=40, run_id="b6", size=2, entries={"model": flatten(STATE)})
    Store(tmp_path / "run" / "checkpoints").publish(snapshot)
    return tmp_path / "run"


def test_it_reports_in_words_and_in_json(run_dir, tmp_path, capsys):
    file = tmp_path / "w.safetensors"
    assert main(["export", str(run_dir), str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 1 tensors of step 40, run b6\n"
    assert main(["export", str(run_dir), str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "file": str(file),
        "run_id": "b6",
        "step": 40,
        "tensors": 1,
        "weights_sha256": digest(STATE),
    }


def test_impossible_requests_end_with_status_2(run_dir, tmp_path, capsys):
    assert main(["export", str(run_dir), str(tmp_path / "w.bin")]) == 2
    assert main(["export", str(tmp_path / "absent"), str(tmp_path / "w.pt")]) == 2
    assert "no checkpoint in" in capsys.readouterr().err


def test_damage_ends_with_status_1_and_its_reason(run_dir, tmp_path, capsys):
    (run_dir / "checkpoints" / "step-00000040" / "model.safetensors").write_bytes(b"")
    assert main(["export", str(run_dir), str(tmp_path / "w.pt")]) == 1
    assert "none of them is valid: step 40: model.safetensors: 0 bytes long" in capsys.readouterr().err
