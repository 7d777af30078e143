"""Each question of `hvdtrain bench` is really asked once, with tiny sizes: all sides start and end, at any speed."""

import json

import pytest

from hvdtrain.diagnostics.bench import ask
from hvdtrain.diagnostics.bench.table import table

STEP_SIDES = {"no_communication", "hvdtrain", "hvdtrain_allreduce", "horovod_plain", "ddp_gloo"}
TINY = {
    "step": {"models": ["tiny"], "tune": False},
    "overhead": {"steps": 10, "blocks": 1},
    "allreduce": {"sizes": [64, 2**16], "blocks": 1},
    "launch": {"model": "tiny"},
    "data": {"step_s": 0.005, "steps": 5, "parts": [0.5], "samples": [10**4, 10**9], "repeats": 1},
    "checkpoint": {"nbytes": 10**6, "every_s": 0.05, "repeats": 1, "model": "tiny"},
    "init": {"model": "tiny", "steps": 2},
    "scaling": {"sizes": [1], "model": "tiny"},
}
CASES = {
    "step": {"tiny": STEP_SIDES},
    "overhead": {case: {"horovod_loop", "hvdtrain", "hvdtrain_sentinel"} for case in ("step", "step_cpu")},
    "allreduce": {size: {"copy", "mpi", "horovod", "shared_memory", "gloo"} for size in ("64B", "64KB")},
    "launch": {
        "first_step": {"hvdtrain_launch", "mpirun"},
        "command": {"python", "help", "launch_dry_run", "import"},
    },
    "data": {
        "stall_0.5": {"hvdtrain", "hvdtrain_no_workers", "torch"},
        "seek_1e4": {"hvdtrain"},
        "seek_1e9": {"hvdtrain"},
    },
    "checkpoint": {
        **{case: {"raw", "hvdtrain"} for case in ("blocked", "written", "restart")},
        "training": {"no_saves", "hvdtrain"},
    },
    "init": {"horovod": {"before", "after"}, "hvdtrain": {"before", "after"}, "start": {"horovod", "hvdtrain"}},
    "scaling": {"1": {"no_communication", "hvdtrain"}},
}


@pytest.mark.parametrize("question", TINY)
def test_a_question_is_answered_by_all_its_sides(question, tmp_path):
    folder = {"folder": tmp_path} if question == "checkpoint" else {}
    report = ask(question, starts=1, **TINY[question], **folder)
    assert {case.name: set(case.samples) for case in report.cases} == CASES[question]
    assert all(value > 0 for case in report.cases for numbers in case.samples.values() for value in numbers)
    assert {finding.verdict(busy=False) for finding in report.findings} <= {
        "undecided",
        None,
    }  # one start proves nothing
    assert json.loads(json.dumps(report.as_json()))["circumstances"]["starts"] == 1
    assert table(report)
    assert list(tmp_path.iterdir()) == []
