"""The harness of tests/parallel with tests that fail on one rank: root reports it, and nothing hangs."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hvdtrain.install.proof import OPEN_MPI_FLAGS, environment

HARNESS = Path(__file__).parents[1] / "parallel" / "conftest.py"


@pytest.fixture
def session(tmp_path):
    """Run a test file on two ranks, as tests/parallel is run, and give its exit status and what it printed."""

    def call(text, *, ranks=2):
        shutil.copy(HARNESS, tmp_path / "conftest.py")
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        env = os.environ | environment(user_id=os.getuid()) | {"HVDTRAIN_TEST_ALONE_S": "3"}
        argv = ["mpirun", *OPEN_MPI_FLAGS, "-np", str(ranks), sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        argv += ["--color=no", "-rA", "--rootdir", str(tmp_path), str(tmp_path)]
        done = subprocess.run(argv, env=env, cwd=tmp_path, stdout=-1, stderr=-2, text=True, timeout=100, check=False)
        return done.returncode, done.stdout

    return call


def test_what_fails_on_one_rank_fails_with_its_text(session):
    status, output = session("""
        import pytest

        def test_call(run):
            assert run.topology.rank != 1, "call on one"

        @pytest.fixture
        def broken(run):
            assert run.topology.rank != 1, "fixture on one"

        def test_fixture(broken):
            raise NotImplementedError

        @pytest.fixture
        def torn(run):
            yield
            assert run.topology.rank != 1, "teardown on one"

        def test_teardown(torn):
            pass

        def test_skip_on_one(run):
            if run.topology.rank == 1:
                pytest.skip("only here")

        def test_skip(run):
            pytest.skip("everywhere")

        def test_still_in_step(run):
            assert run.collectives.gather_json(run.topology.rank) == [0, 1]
    """)
    assert status != 0
    for name in ("call", "fixture", "teardown"):
        assert "on rank 1:" in output
        assert f"AssertionError: {name} on one" in output
    assert "some ranks skipped and some did not: ['passed', 'skipped']" in output
    assert "PASSED test_it.py::test_still_in_step" in output
    assert "2 failed, 2 passed, 1 skipped, 2 errors" in output
    assert output.count("test session starts") == 1  # one rank reports


def test_a_rank_that_leaves_the_others_in_a_collective_ends_the_job(session):
    status, output = session("""
        def test_left(run):
            assert run.topology.rank != 1, "left the others"
            run.collectives.barrier()
    """)
    assert status != 0
    assert "test_it.py::test_left: rank 1 failed while others wait in the test" in output
    assert "AssertionError: left the others" in output


def test_ranks_that_collect_different_tests_do_not_begin(session):
    status, output = session("""
        import os

        def test_both(run):
            pass

        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            def test_one(run):
                pass
    """)
    assert status != 0
    assert "did not collect the same tests in the same order: ['1 tests, 0 errors', '2 tests, 0 errors']" in output


def test_an_import_that_fails_on_one_rank_does_not_hang(session):
    status, output = session("""
        import os
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            raise ImportError("not on this host")

        def test_both(run):
            run.collectives.barrier()
    """)
    assert status != 0
    assert "['1 tests, 0 errors', '0 tests, 1 errors']" in output
