"""Whose MPI a shared object needs, from its bytes and from a map of a process."""

import importlib.metadata
from pathlib import Path

import pytest

from hvdtrain.install import linkage

MAPS = """\
7f00-7f01 r--p 00000000 fe:00 123   /opt/openmpi/lib/libmpi.so.40.40.9
7f01-7f02 r-xp 00001000 fe:00 123   /opt/openmpi/lib/libmpi.so.40.40.9
7f02-7f03 r--p 00000000 fe:00 124   /usr/lib/libmpich/lib/libmpi.so.12.1.8
7f03-7f04 r--p 00000000 fe:00 125   /usr/lib/libmpi_cxx.so.40
7f04-7f05 rw-p 00000000 00:00 0
"""


@pytest.mark.parametrize(
    ("content", "needed", "family"),
    [
        (b"\x7fELF\0libc.so.6\0libmpi.so.40\0libm.so.6\0", ("libmpi.so.40",), "Open MPI"),
        (b"\x7fELF\0libmpi.so.12\0", ("libmpi.so.12",), "MPICH"),
        (b"\x7fELF\0libmpi_cxx.so.40\0libc.so.6\0", (), ""),
        (b"\x7fELF\0libmpi.so.99\0", ("libmpi.so.99",), ""),
    ],
)
def test_what_a_library_needs(tmp_path, content, needed, family):
    (tmp_path / "lib.so").write_bytes(content)
    assert linkage.needed(tmp_path / "lib.so") == needed
    assert linkage.family(needed) == family


def test_what_is_loaded_is_named_once():
    files = linkage.loaded(MAPS)
    assert files == ("/opt/openmpi/lib/libmpi.so.40.40.9", "/usr/lib/libmpich/lib/libmpi.so.12.1.8")
    assert linkage.family(files) == "Open MPI"


def test_the_installed_horovod_is_found():
    library = linkage.horovod_library()
    try:
        importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        assert library is None
    else:
        assert isinstance(library, Path)
        assert library.is_file()
