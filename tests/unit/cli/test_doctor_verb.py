"""`hvdtrain doctor` prints what it found, and its status says whether anything fails."""

import json

from hvdtrain.cli import main


def test_without_anything_on_path_it_fails_and_says_what_to_type(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "fail"
    findings = {finding["check"]: finding for finding in report["findings"]}
    assert findings["mpirun"]["status"] == "fail"
    assert "install-horovod" in findings["mpirun"]["remedy"]
    assert "all-reduce" not in findings


def test_no_ranks_are_impossible(capsys):
    assert main(["doctor", "--ranks", "0"]) == 2
    assert "at least one rank" in capsys.readouterr().err
