from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import InstallError
from hvdtrain.install import record
from hvdtrain.install.target import target_of


@pytest.fixture
def target(laptop):
    return target_of(laptop, gpu="none", env={})


@pytest.fixture
def recorded(tmp_path, target):
    record.write(tmp_path, target, wheel_sha256="abc")
    return tmp_path


def test_a_record_reads_as_it_was_written(recorded, target):
    if record.files_sha256() is None:
        assert record.read(recorded) is None  # no Horovod in this environment
        return
    found = record.read(recorded)
    assert (found.target, found.wheel_sha256) == (target, "abc")
    assert [path.name for path in recorded.iterdir()] == [record.NAME]


def test_a_record_of_another_installation_does_not_count(recorded):
    assert record.read(recorded, installed="something else") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"target": {"torch": 1}}', "null"])
def test_what_is_no_record_is_none(tmp_path, text):
    Path(tmp_path, record.NAME).write_text(text)
    assert record.read(tmp_path, installed="x") is None


def test_a_newer_torch_is_refused_with_the_line_to_type(recorded):
    installed = record.files_sha256()
    if installed is None:
        pytest.skip("no Horovod in this environment")
    record.check(recorded, torch="2.13.0+cpu", installed=installed)
    with pytest.raises(InstallError) as caught:
        record.check(recorded, torch="2.14.1", installed=installed)
    assert "built for torch 2.13.0+cpu; this torch is newer" in caught.value.found
    assert caught.value.remedy.startswith("hvdtrain install-horovod")
    with pytest.raises(InstallError, match="another"):
        record.check(recorded, torch="2.12.0", installed=installed)


def test_without_a_record_nothing_is_refused(tmp_path):
    record.check(tmp_path, torch="9.9", installed="x")


def test_the_mpirun_that_fits_is_the_sites_or_the_environments_own(recorded, target):
    if record.files_sha256() is not None:
        assert record.mpi_bin(recorded) == str(recorded / "bin")
        record.write(recorded, replace(target, mpi_prefix="/opt/openmpi"), wheel_sha256="abc")
        assert record.mpi_bin(recorded) == "/opt/openmpi/bin"
    assert record.mpi_bin(recorded, installed="something else") == ""
