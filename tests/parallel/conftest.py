"""One pytest session over all ranks of an mpirun: every rank runs the same tests, and root reports for all.

The invariant: after each phase of each test (set-up, call, teardown) the ranks exchange their outcomes, and where one
failed, all fail, with its text. A test therefore exchanges first and asserts after, so that no rank waits in the test's
own collective for one that has left; where that happens all the same, the rank that failed says so and ends the job.

    mpirun -np 3 python -m pytest tests/parallel           (scripts/test parallel does it for 1, 2, 3 and 4 ranks)

    def test_sum(run):
        total = run.collectives.allreduce_sum(torch.ones(2))
        assert total.tolist() == [run.topology.size] * 2
"""

import os
import sys
import threading
import traceback
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.config import create_terminal_writer

import hvdtrain
from hvdtrain.topology import detect

ALONE_S = float(os.environ.get("HVDTRAIN_TEST_ALONE_S", "20"))  # how long a rank that failed waits for the others
RUN = pytest.StashKey()
STACK = pytest.StashKey()


def session_run(config):
    """The one run of this session, started at the first call."""
    if RUN not in config.stash:
        config.stash[STACK] = ExitStack()
        config.stash[RUN] = config.stash[STACK].enter_context(hvdtrain.init(seed=1))
    return config.stash[RUN]


@pytest.fixture(scope="session")
def run(request):
    return session_run(request.config)


@pytest.hookimpl(trylast=True)  # when the reporter is there
def pytest_configure(config):
    """Only root writes to the terminal; a rank has its own temporary folders, and a file if it is not root."""
    promise = detect(os.environ)
    if promise is None:
        return
    folder = Path(config.rootpath, ".pytest_cache", "parallel", f"size-{promise.size}-rank-{promise.rank}")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)  # ranks would clean up each other's
    if promise.rank != 0:
        stream = (folder / "output.log").open("w")
        config.add_cleanup(stream.close)
        config.pluginmanager.getplugin("terminalreporter")._tw = create_terminal_writer(config, stream)


def pytest_collection_finish(session):
    """Ranks that collected other tests, or in another order, would wait for each other in different tests."""
    plan = {"tests": [item.nodeid for item in session.items], "errors": session.testsfailed}
    plans = session_run(session.config).collectives.gather_json(plan, "tests.collected")
    if any(other != plans[0] for other in plans):
        counts = [f"{len(other['tests'])} tests, {other['errors']} errors" for other in plans]
        raise pytest.UsageError(f"the ranks did not collect the same tests in the same order: {counts}")


def pytest_unconfigure(config):
    if STACK in config.stash:
        config.stash[STACK].close()


class OtherRankFailed(Exception):
    """This test passed here and failed on another rank, whose text this is."""


def text_of(fault):
    """The traceback without the frames of pytest and of this file."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [f for f in frames if not {"_pytest", "pluggy"} & set(Path(f.filename).parts) and f.filename != __file__]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(fault)])


def leave(run, nodeid, fault):
    text = text_of(fault)
    print(
        f"\n{nodeid}: rank {run.topology.rank} failed while others wait in the test:\n{text}",
        file=sys.__stderr__,
        flush=True,
    )
    run.abort()


def gathered(config, nodeid, fault):
    """Collective: each rank's [outcome, text]; ends the job when this rank failed and the others do not come."""
    run = session_run(config)
    outcome = "passed" if fault is None else "skipped" if isinstance(fault, pytest.skip.Exception) else "failed"
    text = text_of(fault) if fault else ""
    timer = threading.Timer(ALONE_S, leave, [run, nodeid, fault])
    if outcome == "failed" and run.topology.size > 1:
        timer.start()
    try:
        return run.collectives.gather_json([outcome, text], "tests.verdict")
    finally:
        timer.cancel()


def agree(item):
    """A phase of a test, and then the verdict of all ranks on it."""
    fault = None
    try:
        result = yield
    except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
        result, fault = None, error
    verdicts = gathered(item.config, item.nodeid, fault)
    if isinstance(fault, pytest.skip.Exception) or fault is None:
        outcomes = [outcome for outcome, _ in verdicts]
        texts = [f"on rank {rank}:\n{text}" for rank, (outcome, text) in enumerate(verdicts) if outcome == "failed"]
        if texts:
            raise OtherRankFailed("\n".join(texts))
        if len(set(outcomes)) > 1:
            raise OtherRankFailed(f"some ranks skipped and some did not: {outcomes}")
    if fault is not None:
        raise fault
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from agree(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from agree(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    return (yield from agree(item))
