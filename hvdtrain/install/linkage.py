"""Whose MPI an installed or loaded Horovod uses, read from its file or from the map of this process.

Nothing is loaded to find out: a shared object names what it needs in its string table. Open MPI's library is
``libmpi.so.40``; MPICH, Intel MPI and all that keep MPICH's ABI have ``libmpi.so.12``.

    needed(horovod_library())                                   # ("libmpi.so.40",), or () without MPI
    family(("libmpi.so.40",))                                   # "Open MPI"
    loaded(Path("/proc/self/maps").read_text())                 # ("/opt/openmpi/lib/libmpi.so.40.40.9",)
"""

from __future__ import annotations

import importlib.metadata
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

FAMILIES = {"40": "Open MPI", "12": "MPICH"}  # version of libmpi.so -> whose it is


def horovod_library() -> Path | None:
    """The shared object of the installed Horovod for torch; None when there is none."""
    try:
        files = importlib.metadata.files("horovod") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (
        Path(str(file.locate())) for file in files if re.search(r"horovod/torch/mpi_lib\w*\.[\w.-]*so$", str(file))
    )
    return next(found, None)


def needed(library: Path) -> tuple[str, ...]:
    """The MPI libraries that a shared object names, sorted.

    Raises:
        OSError: it cannot be read.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return tuple(sorted({match[1].decode() for match in re.finditer(rb"\0(libmpi\.so\.\d+)\0", data)}))


def family(names: Sequence[str]) -> str:
    """Whose the first of these libraries is; empty when none is known."""
    numbers = (match[1] for name in names if (match := re.search(r"libmpi\.so\.(\d+)", name)))
    return next((FAMILIES[number] for number in numbers if number in FAMILIES), "")


def loaded(maps: str) -> tuple[str, ...]:
    """The MPI libraries in a process, from the text of its ``/proc/PID/maps``; each once, in order."""
    return tuple(dict.fromkeys(re.findall(r"\s(/\S*/libmpi\.so\.\S+)", maps)))
