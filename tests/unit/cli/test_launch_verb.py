"""`hvdtrain launch` shows what it will do without torch, MPI or Horovod, and refuses what cannot start."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.cli import launch, main
from hvdtrain.errors import LaunchError
from hvdtrain.profile import Launching, Profile, write


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


def arguments(*words):
    parser = argparse.ArgumentParser()
    launch.add_arguments(parser)
    return parser.parse_args([*words, "--", "sh", "-c", "true"])


def specified(*words, **env):
    spec, notes = launch.specification(arguments(*words), {"PATH": "/bin:/usr/bin", **env})
    return [(host.name, host.slots) for host in spec.hosts], spec.size, spec, notes


def test_without_hosts_it_is_this_one_with_a_rank_for_each_core():
    hosts, size, spec, notes = specified(CUDA_VISIBLE_DEVICES="")
    assert (hosts, size) == ([], spec.cores_per_host)
    assert spec.command == ("sh", "-c", "true")
    assert notes == ("hosts: this one (no -H, no --hostfile, no job of SLURM, PBS or LSF)",)


def test_with_gpus_it_is_a_rank_for_each(tmp_path):
    assert specified(CUDA_VISIBLE_DEVICES="0,1,2")[1] == 3
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert launch.gpus_here({}, tmp_path) == 2
    assert launch.gpus_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0


def test_hosts_are_named_or_in_a_file_and_the_program_gets_its_whole_path(tmp_path):
    hosts, size, spec, _ = specified("-H", "a:2,b")
    assert (hosts, size) == ([("a", 2), ("b", 1)], 3)
    assert Path(spec.command[0]).is_absolute()
    (tmp_path / "hosts").write_text("c slots=4\n")
    assert specified("--hostfile", str(tmp_path / "hosts"), "-np", "2")[:2] == ([("c", 4)], 2)


def test_a_batch_job_gives_its_hosts_and_cores_and_hosts_that_are_named_win():
    job = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_CPUS_PER_NODE": "48(x2)"}
    hosts, size, spec, notes = specified(**job)
    assert (hosts, size, spec.cores_per_host) == ([("n1", 4), ("n2", 4)], 8, 48)
    assert notes[0] == "hosts: the SLURM job, SLURM_JOB_NODELIST=n[1-2]"
    assert specified("-H", "n2:1", **job)[0] == [("n2", 1)]


def test_all_faults_of_the_supervision_at_once():
    with pytest.raises(LaunchError) as caught:
        launch.policy_of(arguments("--max-restarts", "-1", "--min-np", "0", "--lost-after", "1"))
    assert all(option in caught.value.found for option in ("--max-restarts", "--min-np", "--lost-after"))


def test_min_np_without_restarts_is_said_to_be_ignored(capsys):
    policy = launch.policy_of(arguments("--min-np", "2"))
    assert (policy.max_restarts, policy.lost_after_s) == (0, 30.0)
    assert "--min-np is ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "directory"),
    [
        ("hvdtrain run digits", "runs/digits"),
        ("/opt/bin/hvdtrain run dir/mine.py --train.epochs 3", "runs/mine"),
        ("hvdtrain run digits --run-dir /data/x", "/data/x"),
        ("hvdtrain run digits --run-dir=/data/x", "/data/x"),
        ("python train.py --run-dir x", None),
    ],
)
def test_where_a_training_records_its_failure(command, directory):
    assert launch.run_directory(tuple(command.split())) == (directory and Path(directory))


def test_a_secret_that_was_asked_for_is_withheld_aloud(monkeypatch, capsys):
    monkeypatch.setenv("MY_TOKEN", "hush")
    assert main(["launch", "-H", "a:1", "--env", "MY_*", "--dry-run", "--", "true"]) == 0
    shown = capsys.readouterr()
    assert "--env does not pass MY_TOKEN on" in shown.err
    assert "hush" not in shown.out


TUNED = Launching(binding="core", yielding=False, variables={"HOROVOD_CYCLE_TIME": "0.5"})


def dry_run(capsys, file, *command):
    assert main(["launch", "-np", "2", "--profile", str(file), "--dry-run", "--", *command]) == 0
    return capsys.readouterr().out


def test_a_profile_is_followed_and_handed_on(no_tools, capsys, tmp_path):
    file = tmp_path / "my.profile"
    write(Profile(launch=TUNED), file)
    shown = dry_run(capsys, file, "hvdtrain", "run", "digits")
    assert "--bind-to core" in shown
    assert "mpi_yield_when_idle" not in shown
    assert "HOROVOD_CYCLE_TIME=0.5" in shown
    assert f"hvdtrain run digits --profile {file}" in shown


def test_a_variable_that_is_set_wins_over_the_profile(no_tools, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    write(Profile(launch=TUNED), tmp_path / "p")
    assert "HOROVOD_CYCLE_TIME" not in dry_run(capsys, tmp_path / "p", "true")


def test_a_command_with_a_profile_of_its_own_keeps_it(no_tools, capsys, tmp_path):
    write(Profile(), tmp_path / "p")
    shown = dry_run(capsys, tmp_path / "p", "hvdtrain", "run", "digits", "--profile", "other")
    assert shown.count("--profile") == 1


def test_a_bad_profile_is_one_clear_error(no_tools, capsys, tmp_path):
    (tmp_path / "p").write_text("no")
    assert main(["launch", "-np", "2", "--profile", str(tmp_path / "p"), "--dry-run", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "use the profile" in said
    assert "Traceback" not in said
