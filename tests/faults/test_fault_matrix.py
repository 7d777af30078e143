"""Whatever one rank does in whatever phase: all ranks end within seconds, and the right rank and phase are named.

Each fault belongs to a way of failing; by default the cases are pairwise over way, phase and size, with the kinds of a
way taking turns; `--full` is every kind in every phase at both sizes.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from faulty_job import MPIRUN, run_faulty

from hvdtrain.data.audit import audit

PHASES = ["data", "forward", "backward", "exchange", "update", "evaluate", "save"]
WAYS = {
    "leaves": ["raise", "exit0", "exit3"],
    "dies": ["kill", "_exit0", "segv"],
    "sticks": ["stop", "loop", "hold"],
    "is told to stop": ["term"],
}
# A loss that is not a number comes from data or the forward pass; it is seen in the forward pass.
NUMBERS = [("nan", "data", 2), ("nan", "forward", 3)]
STALL_S = 5.0  # of the recipe
GONE_S = 10.0 * float(os.environ.get("HVDTRAIN_TEST_SLOWNESS", "1"))  # more where machines are shared

FULL = [(kind, phase, size) for kinds in WAYS.values() for kind in kinds for phase in PHASES for size in (2, 3)]
FULL += [(kind, phase, size) for kind, phase, _ in NUMBERS for size in (2, 3)]
PAIRWISE = [
    (kinds[index % len(kinds)], phase, 2 + (index + row) % 2)
    for row, kinds in enumerate(WAYS.values())
    for index, phase in enumerate(PHASES)
] + NUMBERS


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        cases = FULL if metafunc.config.getoption("--full") else PAIRWISE
        metafunc.parametrize("case", cases, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")


def reported(kind):
    """What `failure.json` says of this kind, and the exit statuses that mpirun may make of it."""
    return {
        "raise": ("exception", "Planned", {1}),
        "exit0": ("exit", "sys.exit(0)", {1}),
        "exit3": ("exit", "sys.exit(3)", {1}),
        "_exit0": ("killed", "exit status 0", {1}),
        "kill": ("killed", "SIGKILL", {1, 128 + 9}),  # mpirun's own, which no rank can change
        "segv": ("killed", "SIGSEGV", {1, 128 + 11}),
        "stop": ("stall", "is stopped", {1}),
        "loop": ("stall", "works", {1}),
        "hold": ("stall", "no sign of life", {1}),
        "nan": ("exception", "not a number", {1}),
    }[kind]


def assert_named(job, kind, phase, rank):
    """The failure is recorded, and is the last thing that hvdtrain says; no echo of it comes before."""
    what, reason, statuses = reported(kind)
    failure = job.failure
    assert failure is not None, job.stderr
    assert (failure["rank"], failure["phase"], failure["kind"]) == (rank, phase, what), failure
    assert reason in failure["reason"]
    assert failure["host"]
    assert job.status in statuses
    words = f"rank {rank} on {failure['host']} failed at step {failure['step']} in {phase} and ends the job"
    before, _, after = job.stderr.rpartition(words)
    assert before, job.stderr
    assert "CRITICAL" not in after
    assert "INFO train" not in after
    assert "Horovod has been shut down" not in job.stderr
    assert job.stderr.count("and ends the job") == 1


def test_all_ranks_end_and_the_right_one_is_named(case, tmp_path):
    kind, phase, size = case
    job = run_faulty([*MPIRUN, "-np", str(size)], run_dir=tmp_path / "run", fault=(kind, phase, size - 1))
    assert job.fired, job.stderr
    assert job.orphans == []
    assert job.status != 0
    stalls = reported(kind)[0] == "stall" if kind != "term" else False
    assert job.gone_s < GONE_S + STALL_S * stalls, job.stderr
    if kind == "term":
        assert (job.status, job.failure) == (75, None), job.stderr
        assert list((job.run_dir / "checkpoints").glob("step-*"))
    else:
        assert_named(job, kind, "forward" if kind == "nan" else phase, size - 1)
    if kind in ("segv", "loop", "hold", "raise"):
        assert "faulty_recipe.py" in job.failure["traceback"]


def test_a_step_without_finite_numbers_is_left_out_when_asked(tmp_path):
    job = run_faulty(
        [*MPIRUN, "-np", "2"], "--train.nonfinite", "skip", run_dir=tmp_path / "run", fault=("nan", "forward", 1)
    )
    assert job.fired
    assert (job.status, job.failure) == (0, None), job.stderr
    assert "step 2 is left out" in job.stderr
    losses = {record["step"]: record["loss"] for record in job.records() if record["split"] == "train"}
    assert all(loss == loss for step, loss in losses.items() if step != 3)


@pytest.mark.parametrize("size", [2, 3])
def test_one_batch_fewer_is_no_fault(size, tmp_path):
    mark = tmp_path / "steps"
    program = [sys.executable, str(Path(__file__).with_name("unequal_loop.py")), str(tmp_path / "run"), str(mark)]
    job = run_faulty([*MPIRUN, "-np", str(size)], run_dir=tmp_path / "run", program=program)
    assert (job.status, job.failure, job.orphans) == (0, None, []), job.stderr
    assert mark.read_text() == repr([[5, 5]] * (size - 1) + [[4, 5]])


def test_workers_of_a_killed_rank_are_gone_too(tmp_path):
    job = run_faulty(
        [*MPIRUN, "-np", "2"], "--data.num_workers", "2", run_dir=tmp_path / "run", fault=("kill", "forward", 1)
    )
    assert job.fired
    assert job.orphans == []
    assert job.gone_s < GONE_S
    assert_named(job, "kill", "forward", 1)


BESIDE, ALONE = 0, 1  # servers
OF_SERVERS = [  # kind, phase, rank of three, servers, asynchronous
    ("kill", "forward", 1, BESIDE, False),
    ("kill", "exchange", 2, ALONE, False),  # the server itself
    ("kill", "update", 2, BESIDE, True),
    ("kill", "backward", 0, ALONE, True),
    ("kill", "exchange", 2, ALONE, True),  # the server itself
    ("raise", "update", 1, ALONE, True),
    ("stop", "exchange", 1, BESIDE, True),
]


@pytest.mark.parametrize(("kind", "phase", "rank", "servers", "asynchronous"), OF_SERVERS)
def test_the_same_with_parameter_servers(kind, phase, rank, servers, asynchronous, tmp_path):
    settings = ["--sync.strategy", "parameter_server", "--sync.servers", str(servers)]
    settings += ["--sync.asynchronous", str(asynchronous).lower()]
    job = run_faulty([*MPIRUN, "-np", "3"], *settings, run_dir=tmp_path / "run", fault=(kind, phase, rank))
    assert job.fired, job.stderr
    assert job.orphans == []
    assert job.gone_s < GONE_S + STALL_S * (kind == "stop"), job.stderr
    assert_named(job, kind, phase, rank)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_killed_run_with_a_server_goes_on_and_uses_each_sample_once(asynchronous, tmp_path):
    settings = ["--sync.strategy", "parameter_server", "--sync.servers", "1", "--data.ledger", "true"]
    settings += ["--sync.asynchronous", str(asynchronous).lower(), "--checkpoint.every_steps", "1"]
    launch = [*MPIRUN, "-np", "3"]
    killed = run_faulty(launch, *settings, run_dir=tmp_path / "run", fault=("kill", "forward", 1))
    assert_named(killed, "kill", "forward", 1)
    again = run_faulty(launch, *settings, "--resume", "auto", run_dir=tmp_path / "run")
    assert (again.status, again.failure) == (0, None), again.stderr
    assert "resumed from step" in again.stderr
    report = audit(tmp_path / "run")
    assert report.clean, report.text()
    assert report.attempts == 2


def test_the_failure_of_an_earlier_attempt_is_set_aside(tmp_path):
    failed = run_faulty([*MPIRUN, "-np", "2"], run_dir=tmp_path / "run", fault=("raise", "forward", 1))
    assert failed.failure["phase"] == "forward"
    again = run_faulty([*MPIRUN, "-np", "2"], "--resume", "auto", run_dir=tmp_path / "run")
    assert (again.status, again.failure) == (0, None), again.stderr
    assert len(list(again.run_dir.glob("failure-*.json"))) == 1


# horovodrun says -bind-to by itself, which Open MPI 5 takes for a program
OPEN_MPI_5 = [
    "--binding-args=--bind-to none --map-by slot:OVERSUBSCRIBE",
    "--mpi-args=--mca mpi_yield_when_idle 1",
]
HOROVODRUN = [
    ("raise", "forward"),
    ("exit0", "backward"),
    ("_exit0", "update"),
    ("kill", "data"),
    ("stop", "exchange"),
    ("loop", "forward"),
]


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
@pytest.mark.parametrize(("kind", "phase"), HOROVODRUN)
def test_the_same_under_horovodrun(controller, kind, phase, tmp_path):
    if not shutil.which("horovodrun"):
        pytest.skip("horovodrun is not installed")
    arguments = ["--gloo"] if controller == "gloo" else ["--mpi", *OPEN_MPI_5]
    job = run_faulty(["horovodrun", *arguments, "-np", "2"], run_dir=tmp_path / "run", fault=(kind, phase, 1))
    assert job.fired, job.stderr
    assert job.orphans == []
    assert job.status != 0
    what, reason, _ = reported(kind)
    assert job.gone_s < GONE_S + STALL_S * (what == "stall"), job.stderr
    found = (job.failure["rank"], job.failure["phase"], job.failure["kind"])
    assert found == (1, phase, what), job.failure
    assert reason in job.failure["reason"]
