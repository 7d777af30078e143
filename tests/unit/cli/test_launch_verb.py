"""`hvdtrain launch` shows what it will do without torch, MPI or Horovod, and refuses what cannot start."""

import subprocess
import sys

import pytest

from hvdtrain.cli import main


@pytest.fixture
def no_tools(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_dry_run_without_mpirun_says_what_it_assumes(no_tools, capsys):
    assert main(["launch", "-np", "2", "--dry-run", "--", "hvdtrain", "run", "digits"]) == 0
    shown = capsys.readouterr().out
    assert "# launcher: Open MPI 5.0 (assumed: there is no mpirun on PATH here)" in shown
    assert shown.endswith("    hvdtrain run digits\n")


def test_without_mpirun_nothing_starts_and_the_remedy_is_named(no_tools, capsys):
    assert main(["launch", "-np", "2", "--", "true"]) == 2
    assert "no mpirun on PATH" in capsys.readouterr().err


def test_zero_ranks_are_refused(capsys):
    assert main(["launch", "-np", "0", "--", "true"]) == 2
    assert "at least one rank" in capsys.readouterr().err


def test_a_dry_run_imports_nothing_heavy():
    code = (
        "import sys; from hvdtrain.cli import main; main(['launch', '-np', '2', '--dry-run', '--', 'true']);"
        "print(sorted({'torch', 'numpy', 'horovod', 'mpi4py', 'rich', 'ClusterShell', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
