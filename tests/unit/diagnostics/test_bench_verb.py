"""`hvdtrain bench`: what is refused, and that each question is a function with the options of the verb."""

import inspect
import json
from importlib import import_module

import pytest
from bench_samples import QUIET, around

from hvdtrain.cli import main
from hvdtrain.diagnostics.bench import QUESTIONS, overhead
from hvdtrain.diagnostics.bench.table import table

SIDES = {side: around(50) for side in ("horovod_loop", "hvdtrain", "hvdtrain_sentinel")}
REPORT = overhead.report_of({"step": SIDES, "step_cpu": SIDES}, QUIET)


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_is_a_function(question):
    function = getattr(import_module(f"hvdtrain.diagnostics.bench.{question}"), question)
    assert {"starts", "env", "say"} <= inspect.signature(function).parameters.keys()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["step", "--starts", "0"], "--starts 0"),
        (["step", "--folder", "x"], "it is for checkpoint alone"),
        (["step", "--sizes", "1,2"], "it is for scaling alone"),
    ],
)
def test_impossible_requests_end_with_status_2(words, found, capsys):
    assert main(["bench", *words]) == 2
    assert found in capsys.readouterr().err


def test_an_unknown_question_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "stp"])
    assert ended.value.code == 2
    assert "stp" in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(tmp_path, capsys):
    assert main(["bench", "step", "--plot", str(tmp_path / "step.nonsense")]) == 2
    assert "step.nonsense" in capsys.readouterr().err


def test_it_prints_a_table_or_json_on_stdout_and_what_it_does_on_stderr(monkeypatch, capsys):
    def answer(question, *, say, **given):
        say(f"{question} {given}")
        return REPORT

    monkeypatch.setattr("hvdtrain.cli.bench.ask", answer)
    assert main(["bench", "overhead", "--starts", "9"]) == 0
    shown = capsys.readouterr()
    assert shown.out == table(REPORT)
    assert shown.err == "hvdtrain bench: overhead {'starts': 9}\n"
    assert main(["bench", "scaling", "--sizes", "4,1,2", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == json.loads(json.dumps(REPORT.as_json()))
    assert shown.err == "hvdtrain bench: scaling {'starts': 7, 'sizes': (1, 2, 4)}\n"
