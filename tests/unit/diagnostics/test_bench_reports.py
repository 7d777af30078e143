"""From numbers to each question's report, table and JSON; whole tables are in tests/golden/bench."""

import json
from dataclasses import replace

import pytest
from bench_samples import QUIET, around

from hvdtrain.diagnostics.bench import allreduce, checkpoint, data, init, launch, overhead, scaling, step
from hvdtrain.diagnostics.bench.report import Case, Finding, differences, speedups
from hvdtrain.diagnostics.bench.table import number, table


def step_report(circumstances=QUIET):
    def sides(factor, *, mpi=1.2):
        medians = {"no_communication": 1.0, "hvdtrain": 1.05, "horovod_plain": mpi * 1.5, "ddp_gloo": 1.4}
        return {side: around(factor * median) for side, median in medians.items()}

    samples = {"mlp": sides(104.0), "cnn": sides(47.5, mpi=0.6)}
    return step.report_of(samples, {"mlp": 128, "cnn": 128}, circumstances, notes=("2 ranks",))


def reports():
    commands = {"python": around(30), "help": around(90), "launch_dry_run": around(240), "import": around(9)}
    timed = {"before": around(50, 40), "after": around(70, 41), "start": around(900, 950)}
    timed = {name: dict(zip(("horovod", "hvdtrain"), rows, strict=True)) for name, rows in timed.items()}
    saves = {
        "blocked": {"raw": around(0.1), "hvdtrain": around(0.12)},
        "written": {"raw": around(8e8), "hvdtrain": around(5e8)},
        "restart": {"raw": around(0.2), "hvdtrain": around(0.5)},
        "training": {"no_saves": around(47), "hvdtrain": around(48)},
    }
    mpi = {"copy": around(9000), "mpi": around(30000), "horovod": around(36000), "gloo": around(25000)}
    stall = {"hvdtrain": around(1.1), "hvdtrain_no_workers": around(33), "torch": around(0.9)}
    loops = {"horovod_loop": around(90), "hvdtrain": around(130), "hvdtrain_sentinel": around(131)}
    computing = {
        "1": {"no_communication": around(40), "hvdtrain": around(41)},
        "2": {"no_communication": around(50), "hvdtrain": around(55)},
    }
    return {
        "step": step_report(),
        "overhead": overhead.report_of({"step": loops, "step_cpu": loops}, QUIET),
        "allreduce": allreduce.report_of({"64B": mpi, "64MB": {**mpi, "shared_memory": around(15000)}}, QUIET, size=2),
        "launch": launch.report_of(
            {"first_step": {"hvdtrain_launch": around(3.1), "mpirun": around(3.0)}, "command": commands}, QUIET
        ),
        "data": data.report_of({"stall_0.5": stall, "stall_0.9": stall, "seek_1e9": {"hvdtrain": around(0.8)}}, QUIET),
        "checkpoint": checkpoint.report_of(saves, QUIET, nbytes=500 * 10**6, every_s=20.0),
        "init": init.report_of(timed, QUIET),
        "scaling": scaling.report_of(computing, QUIET, model="cnn"),
    }


@pytest.mark.parametrize("question", reports())
def test_tables(question, golden):
    report = reports()[question]
    assert report.question == question
    golden(f"bench/{question}.txt", table(report))


@pytest.mark.parametrize("question", reports())
def test_json_is_json_and_holds_every_number(question):
    report = reports()[question]
    shown = json.loads(json.dumps(report.as_json()))
    for case in report.cases:
        for side, numbers in case.samples.items():
            figure = shown[report.group][case.name][side]
            assert figure[f"median_{case.unit}"] == case.estimate(side).median
            assert len(figure[f"ci95_{case.unit}"]) == 2
            assert shown["samples"][case.name][side] == numbers


def test_step_prints_the_form_that_scripts_read():
    shown = step_report().as_json()
    assert shown["models"]["mlp"]["hvdtrain"] == {
        "median_ms": 109.2,
        "ci95_ms": [107.016, 112.476],
        "samples_per_s": 1000 * 128 / 109.2,
    }
    # over horovod_plain: sqrt(1.8 * 0.9) / 1.05
    assert shown["geomean_speedup"] == pytest.approx(
        {"no_communication": 1 / 1.05, "horovod_plain": 1.2122, "ddp_gloo": 1.4 / 1.05}, abs=2e-4
    )


def test_step_judges_every_rival_on_every_model_and_both_means():
    verdicts = {finding.text: finding.verdict(busy=False) for finding in step_report().findings}
    assert verdicts == {
        "mlp: hvdtrain over horovod_plain": "held",
        "mlp: hvdtrain over ddp_gloo": "held",
        "mlp: part of the rate without communication": "held",
        "cnn: hvdtrain over horovod_plain": "refuted",
        "cnn: hvdtrain over ddp_gloo": "held",
        "cnn: part of the rate without communication": "held",
        "geometric mean: ddp_gloo over hvdtrain": "held",
        "geometric mean: horovod_plain over hvdtrain": "refuted",
    }


def test_a_busy_machine_is_named_in_the_table():
    assert "load 0.1 before, 3.2 after\n" in table(step_report())
    assert "NOT A QUIET MACHINE" in table(step_report(replace(QUIET, load_before=5.0)))


def test_a_busy_machine_refutes_no_time_but_can_hold_one():
    figures = {"at_most": 200.0, "needs_quiet": True}
    long = Finding(text="", figure=Case("", "ms", {"a": around(240)}).estimate("a"), **figures)
    short = Finding(text="", figure=Case("", "ms", {"a": around(150)}).estimate("a"), **figures)
    assert [long.verdict(busy=busy) for busy in (False, True)] == ["refuted", "undecided"]
    assert [short.verdict(busy=busy) for busy in (False, True)] == ["held", "held"]
    assert long.as_json(busy=True)["verdict"] == "undecided"


def test_too_few_starts_are_no_interval_and_no_conclusion():
    two = {side: [1.0, 2.0] for side in ("horovod_loop", "hvdtrain", "hvdtrain_sentinel")}
    report = overhead.report_of({"step": two, "step_cpu": two}, QUIET)
    assert report.as_json()["cases"]["step"]["hvdtrain"] == {"median_us": 1.5, "ci95_us": None}
    assert {finding.verdict(busy=False) for finding in report.findings} == {"undecided", None}
    assert "none of 2" in table(report)


def test_sides_that_a_case_lacks_do_not_count_for_it():
    cases = [Case("a", "ms", {"hvdtrain": [1.0], "x": [2.0]}), Case("b", "ms", {"hvdtrain": [1.0], "y": [3.0]})]
    found = {side: one.median for side, one in speedups(cases, "hvdtrain").items()}
    assert found == pytest.approx({"x": 2.0, "y": 3.0})


def test_differences_are_paired():
    one = differences([130.0, 230.0, 330.0, 130.0, 230.0, 330.0], [100.0, 200.0, 300.0, 100.0, 200.0, 300.0])
    assert (one.low, one.median, one.high) == (30.0, 30.0, 30.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (-4.21, "-4.21")]
)
def test_numbers(value, text):
    assert number(value) == text
