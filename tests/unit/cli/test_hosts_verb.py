"""`hvdtrain hosts` converts between dialects and names what gets lost."""

import json
from pathlib import Path

import pytest

from hvdtrain.cli import main

OPENMPI = str(Path(__file__).parents[3] / "hostfiles" / "openmpi.txt")

WRITTEN = {
    "openmpi": "gpu01 slots=4 max_slots=8\ngpu02 slots=4\nalice@gpu03 slots=2\n",
    "hydra": "gpu01:4\ngpu02:4\nalice@gpu03:2\n",
    "horovodrun": "gpu01:4,gpu02:4,alice@gpu03:2\n",
    "list": "gpu01\n" * 4 + "gpu02\n" * 4 + "alice@gpu03\n" * 2,
}


@pytest.mark.parametrize("dialect", WRITTEN)
def test_conversion(dialect, capsys):
    assert main(["hosts", OPENMPI, "--to", dialect]) == 0
    shown = capsys.readouterr()
    assert shown.out == WRITTEN[dialect]
    assert ("max_slots of gpu01 is left out" in shown.err) == (dialect != "openmpi")


def test_json(capsys):
    assert main(["hosts", OPENMPI, "--json"]) == 0
    hosts = json.loads(capsys.readouterr().out)
    assert hosts[0] == {"name": "gpu01", "slots": 4, "max_slots": 8, "user": None}


def test_a_faulty_file_is_exit_2(tmp_path, capsys):
    path = tmp_path / "hosts"
    path.write_text("a b\n")
    assert main(["hosts", str(path), "--to", "list"]) == 2
    assert f"{path}:1: 'b', expected" in capsys.readouterr().err
