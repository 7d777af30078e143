"""The report of `doctor` for given facts, whole; and how its facts are found."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hvdtrain.checks.machine import MIB, MachineFacts
from hvdtrain.checks.software import SoftwareFacts
from hvdtrain.checks.trial import TrialFacts
from hvdtrain.diagnostics import doctor, machine, software, trial

LOGIN_NODE = (
    SoftwareFacts(python="3.11.7"),
    MachineFacts(host_cores=4, cores=4, shm_bytes=MIB * 8000, shm_free_bytes=MIB * 8000, free_bytes={"runs": 2**40}),
    None,
)
BAD_CONTAINER = (
    SoftwareFacts(
        python="3.11.7",
        environment="venv",
        torch="2.14.1",
        horovod="0.28.1",
        controllers=("mpi", "gloo"),
        built_for="2.13.0+cpu",
        horovod_mpi="Open MPI 5.0.11",
        mpi_bin="/venv/bin",
        mpi4py="4.1.2",
        mpi4py_mpi="Open MPI 5.0.11",
        mpirun="/opt/mpich/bin/mpirun",
        mpirun_mpi="MPICH (Hydra) 4.2.3",
        compiler="/usr/bin/g++",
    ),
    MachineFacts(
        host_cores=8,
        cores=1,
        ranks=2,
        threads=64,
        shm_bytes=65536,
        shm_free_bytes=65536,
        cma="EPERM",
        in_container=True,
        open_files=512,
        locked_bytes=65536,
        free_bytes={"runs": 2**30 * 500, "/tmp": 2**20},
        synchronised=False,
    ),
    TrialFacts(ranks=2, launcher="MPICH (Hydra) 4.2.3", sizes=(1, 1), sums=(1.0, 1.0)),
)


@pytest.mark.parametrize(("name", "facts"), [("login-node", LOGIN_NODE), ("bad-container", BAD_CONTAINER)])
def test_the_report_is_whole(name, facts, golden):
    golden(f"doctor/{name}.txt", doctor.plain(doctor.diagnose(*facts)))


def test_a_terminal_gets_a_table_with_the_same_lines():
    findings = doctor.diagnose(*LOGIN_NODE)
    shown, piped = io.StringIO(), io.StringIO()
    doctor.show(findings, Console(file=shown, force_terminal=True, width=200))
    doctor.show(findings, Console(file=piped, force_terminal=False))
    assert piped.getvalue() == doctor.plain(findings)
    assert "\x1b[" in shown.getvalue()
    for finding in findings:
        assert finding.found in shown.getvalue()
        assert finding.remedy in shown.getvalue()


def test_json_says_the_worst_first():
    report = json.loads(json.dumps(doctor.as_json(doctor.diagnose(*LOGIN_NODE))))
    assert report["status"] == "fail"
    assert {finding["check"] for finding in report["findings"]} > {"torch", "Horovod", "/dev/shm", "clock"}
    assert doctor.worst([]) == "pass"


def test_software_is_found_without_an_import_here(tmp_path):
    answers = {
        "horovod": ({"gpus": 0, "controllers": ["mpi"], "nccl": False}, ""),
        "mpi4py": ({"mpi4py_mpi": "Open MPI v5.0.11, package: x"}, ""),
    }
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    facts = software.software_facts({"PATH": ""}, prefix=tmp_path, probed=answers.__getitem__, devices=tmp_path)
    assert facts.gpu_devices == 1
    assert facts.compiler is None
    assert facts.mpirun is None
    if facts.torch:
        assert facts.controllers == ("mpi",)
    if facts.mpi4py:
        assert facts.mpi4py_mpi == "Open MPI 5.0.11"


def test_an_import_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(software, "version_of", {"torch": "2.13.0", "horovod": "0.28.1"}.get)
    crash = ({"gpus": 0}, "ImportError: undefined symbol: _ZN3c10")
    facts = software._libraries({"horovod": crash}.__getitem__)
    assert facts["horovod_fault"] == crash[1]
    assert "torch_fault" not in facts
    facts = software._libraries({"horovod": ({}, "it ended by SIGSEGV")}.__getitem__)
    assert facts["torch_fault"] == "it ended by SIGSEGV"


def test_a_probe_that_crashes_is_an_answer(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert software.probe("horovod") == ({}, "it ended by SIGSEGV")


@pytest.mark.parametrize(
    ("status", "stderr", "fault"),
    [
        (0, "noise", ""),
        (-9, "", "it ended by SIGKILL"),
        (1, "a\nValueError: b\n\n", "ValueError: b"),
        (3, "", "exit status 3"),
    ],
)
def test_faults_in_a_line(status, stderr, fault):
    assert software.fault_of(status, stderr) == fault


def test_this_machine_has_facts(tmp_path):
    facts = machine.machine_facts({"OMP_NUM_THREADS": "3,1", "SLURM_CPU_BIND": "cores"}, ranks=2, run_dir=tmp_path)
    assert facts.threads == 3
    assert facts.binding == {"SLURM_CPU_BIND": "cores"}
    assert 1 <= facts.cores <= facts.host_cores
    assert facts.cma is not None
    assert facts.free_bytes[str(tmp_path)] > 0
    assert abs(facts.skew_s) < 2
    assert facts.clock_behind_s == 0.0


def test_the_batch_system_says_how_many_ranks():
    job = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_TASKS_PER_NODE": "3(x2)", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}
    facts = machine.machine_facts(job)
    assert (facts.ranks, facts.hosts) == (3, 2)


def test_a_container_has_a_quota(tmp_path):
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert machine.usable_cores(tmp_path / "cpu.max") == 1
    assert machine.quota_cores("max 100000") is None
    assert machine.usable_cores(tmp_path / "none") == len(os.sched_getaffinity(0))


def test_reports_of_ranks_are_found_among_noise():
    report = '{"trial": {"rank": 0, "size": 2, "sum": 3.0, "init_s": 0.2, "with_horovod_ms": 1.2, "alone_ms": 1.0}}'
    facts = trial.trial_facts(2, "Open MPI", f"noise {report}\n[1,1]<stdout>:{report}", "", seconds=1.0)
    assert facts.is_right
    assert facts.with_horovod_ms == 1.2


def test_a_trial_without_a_launcher_says_so():
    facts = trial.start_trial(2, {"PATH": ""})
    assert "no mpirun on PATH" in facts.fault
    assert facts.remedy


def test_a_trial_that_hangs_is_ended(tmp_path):
    fake = tmp_path / "mpirun"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11" && exit\nsleep 60\n')
    fake.chmod(0o755)
    facts = trial.start_trial(2, {"PATH": f"{tmp_path}:/bin:/usr/bin"}, limit_s=0.3)
    assert facts.fault.startswith("they had not ended after 0 s")


def test_the_last_words_are_the_first_error():
    text = "-----\nTraceback\n  File x\nImportError: no horovod\n-----\nprterun has exited\n"
    assert trial.last_words(text) == "ImportError: no horovod"
    assert trial.last_words("") == "it said nothing"


def test_files_that_run_by_their_path_are_there():
    for path in (software.PROBE, trial.RANK, machine.MEMORY_ACCESS):
        assert path.is_file()
        assert path.parent == Path(sys.modules["hvdtrain.diagnostics"].__file__).parent
