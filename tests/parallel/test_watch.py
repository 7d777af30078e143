"""A loop of one's own that is watched, and long work of root that the others wait for."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest

import hvdtrain
from hvdtrain.config import WatchdogConfig
from hvdtrain.failure import Failure, publish, read
from hvdtrain.phases import read_record
from hvdtrain.watchdog import end_watch, watching


@pytest.fixture
def run_dir(run):
    directory = Path(run.collectives.on_root(lambda: mkdtemp()))
    yield directory
    end_watch()
    run.failures.directory = None
    run.collectives.barrier()
    if run.topology.is_root:
        shutil.rmtree(directory)


def test_every_rank_has_a_record_that_the_others_can_read(run, run_dir):
    hvdtrain.watch(run, run_dir)
    run.phases.step = 40 + run.topology.rank
    run.phases.enter("data")
    run.collectives.barrier()
    records = [read_record(run_dir / "watch" / f"rank-{rank:04d}") for rank in range(run.topology.size)]
    seen = run.collectives.gather_json([[record.rank, record.step, record.phase] for record in records])
    assert seen == [[[rank, 40 + rank, "data"] for rank in range(run.topology.size)]] * run.topology.size


def test_long_work_of_root_that_is_declared_raises_no_alarm(run, run_dir):
    settings = WatchdogConfig(stall_s=0.5, start_s=0.5, usual_steps=0.0)
    with watching(run, run_dir, settings) as watchdog:
        if run.topology.is_root:
            with run.root_section("export", timeout_s=60):
                assert not watchdog.ended.wait(2.0)
        run.collectives.barrier()
    failures = run.collectives.gather_json(read(run_dir) is not None)
    assert failures == [False] * run.topology.size


def test_a_new_watch_sets_the_failure_of_an_earlier_attempt_aside(run, run_dir):
    known = {"host": "x", "step": 1, "phase": "data", "kind": "exception", "reason": "earlier"}
    run.collectives.on_root(lambda: publish(run_dir, Failure(rank=0, **known)))
    hvdtrain.watch(run, run_dir)
    left = run.collectives.gather_json(read(run_dir) is None)
    assert left == [True] * run.topology.size
