"""Weights come in by their names, with a report, and go out as files that other programs read."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hvdtrain.checkpoint.format import Snapshot
from hvdtrain.checkpoint.store import Store
from hvdtrain.checkpoint.weights import export, load_initial
from hvdtrain.errors import CheckpointError, InvalidCheckpoint, RunDirectoryError, UsageError
from hvdtrain.statetree import digest, flatten


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embedding.weight


@pytest.fixture
def run_dir(tmp_path):
    torch.manual_seed(3)
    entries = {"model": flatten(Tied().state_dict()), "sampler": flatten({"epoch": 2})}
    Store(tmp_path / "run" / "checkpoints").publish(Snapshot(step=7, run_id="b6", size=2, entries=entries))
    return tmp_path / "run"


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_out_and_in_again(run_dir, tmp_path, suffix):
    file = tmp_path / f"tied{suffix}"
    exported = export(run_dir, file)
    model = Tied()
    report = load_initial(file, model)
    assert report == {"loaded": 3, "missing": [], "unexpected": []}
    assert exported == {
        "file": str(file),
        "run_id": "b6",
        "step": 7,
        "tensors": 3,
        "weights_sha256": digest(model.state_dict()),
    }
    assert model.head.weight is model.embedding.weight
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["run", file.name]


def test_exported_files_are_what_others_expect(run_dir, tmp_path):
    export(run_dir, tmp_path / "a.safetensors")
    export(run_dir, tmp_path / "a.pt")
    theirs = load_file(tmp_path / "a.safetensors")
    also = torch.load(tmp_path / "a.pt", weights_only=True)
    assert theirs.keys() == also.keys() == Tied().state_dict().keys()
    assert all(torch.equal(theirs[name], also[name]) for name in theirs)


def test_an_export_replaces_an_earlier_one_whole(run_dir, tmp_path):
    (tmp_path / "a.pt").write_bytes(b"old")
    export(run_dir, tmp_path / "a.pt")
    assert load_initial(tmp_path / "a.pt", Tied())["loaded"] == 3


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}])
def test_a_state_dict_may_be_wrapped(tmp_path, wrap):
    torch.save(wrap(nn.Linear(2, 2).state_dict()), tmp_path / "w.pt")
    assert load_initial(tmp_path / "w.pt", nn.Linear(2, 2))["loaded"] == 2


def test_names_that_do_not_meet_are_reported(tmp_path):
    save_file({"weight": torch.ones(2, 2), "scale": torch.ones(1)}, tmp_path / "w.safetensors")
    model = nn.Linear(2, 2)
    bias = model.bias.detach().clone()
    report = load_initial(tmp_path / "w.safetensors", model)
    assert report == {"loaded": 1, "missing": ["bias"], "unexpected": ["scale"]}
    assert torch.equal(model.weight, torch.ones(2, 2))
    assert torch.equal(model.bias, bias)


def write_nothing_in_common(path):
    save_file({"other": torch.ones(1)}, path)


def write_other_shapes(path):
    save_file({"weight": torch.ones(3, 2), "bias": torch.ones(2)}, path)


def write_damage(path):
    save_file({"weight": torch.ones(2, 2)}, path)
    path.write_bytes(path.read_bytes()[:-1])


def write_absurd_header(path):
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (write_nothing_in_common, "no name in common; it has other"),
        (write_other_shapes, r"weight: \[3, 2\], not \[2, 2\]"),
        (write_damage, "SafetensorError"),
        (write_absurd_header, "SafetensorError"),
    ],
)
def test_what_does_not_fit_leaves_the_model_as_it_was(tmp_path, write, found):
    write(tmp_path / "w.safetensors")
    model = nn.Linear(2, 2)
    before = digest(model.state_dict())
    with pytest.raises(InvalidCheckpoint, match=found):
        load_initial(tmp_path / "w.safetensors", model)
    assert digest(model.state_dict()) == before


class Harmful:
    def __reduce__(self):
        return (os.mkdir, ("harm-was-done",))


def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Harmful()}, tmp_path / "w.pt")
    with pytest.raises(InvalidCheckpoint, match="UnpicklingError"):
        load_initial(tmp_path / "w.pt", nn.Linear(2, 2))
    assert os.listdir(tmp_path) == ["w.pt"]


@pytest.mark.parametrize(
    ("content", "found"), [([1], "a list"), ({"a": 1, "b": {}}, "a dict of a, b"), ({}, "a dict of")]
)
def test_a_file_without_a_state_dict_is_refused(tmp_path, content, found):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(InvalidCheckpoint, match=found):
        load_initial(tmp_path / "w.pt", nn.Linear(2, 2))


def test_impossible_requests_are_usage_errors(tmp_path, run_dir):
    with pytest.raises(UsageError, match="no such file"):
        load_initial(tmp_path / "absent.pt", Tied())
    for act in (lambda path: load_initial(path, Tied()), lambda path: export(run_dir, path)):
        with pytest.raises(UsageError, match=r"'\.bin'.*\n.*\.pt, \.pth, \.safetensors"):
            act(tmp_path / "w.bin")
    with pytest.raises(RunDirectoryError, match="no checkpoint"):
        export(tmp_path / "absent", tmp_path / "w.pt")


def test_trouble_while_exporting_leaves_the_old_file(tmp_path, run_dir):
    with pytest.raises(CheckpointError, match="FileNotFoundError"):
        export(run_dir, tmp_path / "absent" / "w.pt")
    entries = {"sampler": flatten({"epoch": 2})}
    Store(run_dir / "checkpoints").publish(Snapshot(step=8, run_id="b6", size=2, entries=entries))
    with pytest.raises(CheckpointError, match="step 8 has sampler, and no dict of tensors"):
        export(run_dir, tmp_path / "w.pt")
    assert not (tmp_path / "w.pt").exists()
