"""What is recorded beside figures: flags, processor, and whether the machine was quiet."""

from pathlib import Path

from hvdtrain.diagnostics.bench.circumstances import Circumstances, flags, observe, processor


def test_flags_are_the_variables_that_change_how_ranks_run():
    env = {"OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "2", "HOME": "/root", "API_KEY": "x", "OMPI_MCA_btl": "self"}
    assert flags(env) == {"HOROVOD_CYCLE_TIME": "2", "OMPI_MCA_btl": "self", "OMP_NUM_THREADS": "1"}


def test_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: AMD EPYC\nprocessor\t: 1\nmodel name\t: AMD EPYC\n")
    assert processor(file) == "AMD EPYC"
    assert processor(tmp_path / "absent") != ""


def test_a_machine_is_busy_by_its_load_per_core():
    given = {"versions": {}, "processor": "", "cores": 8}
    assert not Circumstances(load_before=2.0, **given).busy
    assert Circumstances(load_before=2.1, **given).busy


def test_observed_on_this_machine_without_an_mpi():
    seen = observe({"PATH": "", "OMP_NUM_THREADS": "1"}, cpuinfo=Path("/absent"))
    assert seen.cores >= 1
    assert seen.versions["mpi"] == "none on PATH"
    assert "torch" in seen.versions
    closed = seen.closed(1.5, starts=7, commands={"a": "true"}).as_json()
    assert (closed["load_after"], closed["starts"], closed["commands"]) == (1.5, 7, {"a": "true"})
    assert closed["busy"] in {True, False}
