"""Only what differs or is missing is shown, by host; what a host says of itself is true."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hvdtrain
from hvdtrain.diagnostics.preflight import _matched, ask, compare, table
from hvdtrain.launch import probe
from hvdtrain.launch.spec import Host, Invocation, LaunchSpec, Option

GOOD = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "horovod": "0.28.1",
    "mpi": "mpirun (Open MPI) 5.0.11",
    "hvdtrain": "0.1.0",
    "mpi4py": "4.1.2",
    "numpy": "2.4.0",
    "safetensors": "0.8.0",
    "program": "/opt/hvdtrain",
    "files_missing": [],
    "shm_bytes": 2**30,
    "offset_s": 1.0,
}


def compared(training=True, silent=(), **changes):
    answers = {name: {**GOOD, **changes.get(name, {})} for name in ("a", "b", "c")}
    found = compare(answers, dict(silent), training=training)
    return [(one.host, one.fact, one.found, one.expected, one.status) for one in found]


def test_hosts_that_are_alike_say_nothing():
    assert compared() == []
    assert table([]) == ""


@pytest.mark.parametrize("fact", ["torch", "horovod", "mpi", "hvdtrain", "mpi4py", "numpy", "safetensors"])
def test_the_host_with_another_version_is_named(fact):
    assert compared(b={fact: "0.0"}) == [("b", fact, "0.0", f"the other 2 have {GOOD[fact]}", "fail")]


def test_a_missing_package_is_named_even_where_most_lack_it():
    lacking = {"b": {"horovod": None}, "c": {"horovod": None}}
    assert [row[0] for row in compared(**lacking)] == ["b", "c"]


def test_what_no_host_has_matters_to_a_training_only():
    lacking = {name: {"horovod": None} for name in ("a", "b", "c")}
    assert len(compared(**lacking)) == 3
    assert compared(training=False, **lacking) == []


def test_a_patch_of_python_is_a_warning_a_minor_version_a_fault():
    assert compared(b={"python": "3.11.9"})[0][-1] == "warn"
    assert compared(b={"python": "3.12.1"})[0][-1] == "fail"


def test_program_files_memory_and_clock():
    rows = compared(a={"program": None}, b={"files_missing": ["train.py"]}, c={"shm_bytes": 2**20, "offset_s": 61.0})
    assert [row[:3] for row in rows] == [
        ("a", "program", "is missing"),
        ("b", "file", "no train.py"),
        ("c", "/dev/shm", "1 MiB free"),
        ("c", "clock", "+60 s"),
    ]


def test_a_silent_host_and_its_reason():
    rows = compared(silent={"d": "ssh: connect to host d port 22: No route to host"})
    assert rows == [("d", "reachable", "no", "ssh: connect to host d port 22: No route to host", "fail")]


def test_a_host_that_slurm_gave_is_slurms_to_judge():
    found = compare({}, {"d": "srun could not start it"}, training=True, over_ssh=False)
    assert [(one.host, one.status) for one in found] == [("d", "warn")]


def test_the_table_has_columns():
    text = table(compare({"a": GOOD, "gpu02": {**GOOD, "torch": None}}, {}, training=True))
    assert text == "gpu02  torch  is missing  another has 2.13.0"


def test_hosts_that_call_themselves_otherwise():
    hosts = [Host(name="gpu01"), Host(name="10.0.0.2"), Host(name="gpu03.site")]
    answers = [{"host": name, "clock_s": 7.0} for name in ("gpu03", "gpu01.site", "ip-10-0-0-2")]
    matched = _matched(hosts, iter(answers), began=6.0)
    assert {name: facts["host"] for name, facts in matched.items()} == {
        "gpu01": "gpu01.site",
        "10.0.0.2": "ip-10-0-0-2",
        "gpu03.site": "gpu03",
    }
    assert matched["gpu01"]["offset_s"] == 1.0


def test_a_silent_host_is_not_given_the_answer_of_another():
    hosts = [Host(name="gpu01"), Host(name="gpu02"), Host(name="gpu03")]
    matched = _matched(hosts, iter([{"host": "gpu01", "clock_s": 0}, {"host": "other", "clock_s": 0}]), began=0.0)
    assert list(matched) == ["gpu01"]


def answered(*command, env=None):
    done = subprocess.run(
        [sys.executable, probe.__file__, *command], capture_output=True, text=True, env=env, check=True
    )
    return json.loads(done.stdout.partition(probe.PREFIX)[2])


def test_what_this_host_says_of_itself_is_true(tmp_path):
    facts = answered("sh", "here.py", "-x")
    assert facts["python"] == platform.python_version()
    assert facts["hvdtrain"] == hvdtrain.__version__
    for package in ("torch", "numpy", "mpi4py"):
        assert facts[package].split("+")[0] == importlib.metadata.version(package).split("+")[0]
    assert facts["program"].endswith("/sh")
    assert facts["files_missing"] == ["here.py"]
    assert abs(facts["clock_s"] - time.time()) < 60
    assert facts["cores"] == len(os.sched_getaffinity(0))


def test_it_sees_what_an_import_would_see(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('__version__: str = "1.0.0"\n')
    assert answered("sh", env={**os.environ, "PYTHONPATH": str(tmp_path)})["torch"] == "1.0.0"


def test_an_empty_folder_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "nothing_in_it").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert probe.version_of("nothing_in_it") is None


def test_the_hosts_are_asked_through_the_launcher():
    def build(spec, env):
        assert (spec.size, [host.slots for host in spec.hosts]) == (1, [1])
        return Invocation(program=spec.command[0], options=(Option(spec.command[1:], "here"),), command=())

    spec = LaunchSpec(command=("sh", "x"), size=2, cores_per_host=2, hosts=(Host(name="localhost", slots=2),))
    answers, silent = ask(spec, build, os.environ, over_ssh=True)
    assert silent == {}
    assert answers["localhost"]["hvdtrain"] == hvdtrain.__version__
    assert answers["localhost"]["program"] == "/bin/sh" or Path(answers["localhost"]["program"]).exists()
