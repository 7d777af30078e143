import os
import sys

import pytest

from hvdtrain.errors import InstallError
from hvdtrain.install.facts import find, find_cuda, find_mpi, find_nccl, find_python, parse_mpi, run_quietly

OPEN_MPI_4 = "/usr/bin/mpicxx: Open MPI 4.1.4 (Language: C++)\n"


def program(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MPI_4, ("Open MPI", "4.1.4")),
        ("mpirun (Open MPI) 5.0.11\n", ("Open MPI", "5.0.11")),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", ("MPICH", "4.0.2")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619\n", ("Intel MPI", "2021.10")),
        ("g++: fatal error: no input files\n", None),
        ("", None),
    ],
)
def test_an_mpi_says_whose_it_is(text, expected):
    assert parse_mpi(text) == expected


def test_no_compiler_on_this_path():
    facts = find({"PATH": "/nowhere"}, mpi="wheel")
    assert facts.compiler is None


def test_cxx_names_the_compiler(tmp_path):
    compiler = program(tmp_path, "clang++-18")
    assert find({"PATH": str(tmp_path), "CXX": "clang++-18"}, mpi="wheel").compiler == str(compiler)


def test_an_mpi_on_the_path_wins_over_the_wheel(tmp_path):
    program(tmp_path / "ompi" / "bin", "mpicxx")
    mpi = find_mpi("auto", find_python(), str(tmp_path / "ompi" / "bin"), lambda argv: OPEN_MPI_4)
    assert (mpi.library, mpi.version, mpi.prefix) == ("Open MPI", "4.1.4", str(tmp_path / "ompi"))
    assert not mpi.is_wheel


def test_an_mpicxx_without_headers_is_passed_over_unless_it_was_named(tmp_path):
    """Debian's openmpi-bin without libopenmpi-dev."""
    bare = program(tmp_path, "mpicxx")
    found = find_mpi(
        "auto", find_python(), str(tmp_path), lambda argv: OPEN_MPI_4 if "--showme:version" in argv else ""
    )
    assert found is None or found.is_wheel
    with pytest.raises(InstallError, match=r"does not find mpi\.h"):
        find_mpi(str(bare), find_python(), "", lambda argv: "")


def test_the_environments_own_mpicxx_is_not_the_sites():
    own = os.path.join(sys.prefix, "bin")
    mpi = find_mpi("auto", find_python(), own, lambda argv: OPEN_MPI_4)
    assert mpi is None or mpi.is_wheel


def test_wheel_means_the_wheel_whatever_is_on_the_path(tmp_path):
    program(tmp_path, "mpicxx")
    mpi = find_mpi("wheel", find_python(), str(tmp_path), lambda argv: OPEN_MPI_4)
    assert mpi is None or mpi.is_wheel


def test_an_mpi_that_was_named_must_be_there(tmp_path):
    with pytest.raises(InstallError, match="/missing/mpicxx"):
        find_mpi("/missing/mpicxx", find_python(), "", run_quietly)
    unknown = program(tmp_path, "mpicxx")
    with pytest.raises(InstallError, match="Intel MPI") as caught:
        find_mpi(str(unknown), find_python(), "", lambda argv: "some other compiler")
    assert "--mpi wheel" in caught.value.remedy


def test_nvcc_is_asked_for_its_own_folder(tmp_path):
    program(tmp_path, "nvcc")  # as a module system's wrapper would be

    def ask(argv):
        return "#$ _HERE_=/opt/cuda-13.0/bin\n" if "--dryrun" in argv else f"{argv[0]}\nrelease 13.0, V13.0.88\n"

    assert find_cuda({"PATH": str(tmp_path)}, ask) == ("/opt/cuda-13.0", "13.0")
    assert find_cuda({"PATH": str(tmp_path), "CUDA_HOME": "/mine"}, ask) == ("/mine", "13.0")
    assert find_cuda({"PATH": ""}, lambda argv: "") == (None, None)


def test_a_named_nccl_tells_its_version_by_its_header(tmp_path):
    (tmp_path / "include").mkdir()
    text = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n"
    (tmp_path / "include" / "nccl.h").write_text(text)
    assert find_nccl({"NCCL_HOME": str(tmp_path)}) == (str(tmp_path), "2.28.9")
    assert find_nccl({"NCCL_HOME": "/nowhere"}) == ("/nowhere", None)


def test_finding_out_survives_a_program_that_cannot_run():
    assert run_quietly(["/nowhere/mpicxx"]) == ""
    assert run_quietly([sys.executable, "-c", "raise SystemExit(3)"]) == ""


def test_this_interpreter_is_described():
    python = find_python()
    assert python.tag == f"cp3{sys.version_info.minor}"
    assert python.executable == sys.executable
    assert python.machine.startswith("linux_")
