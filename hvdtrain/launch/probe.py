"""What a host says of itself before ranks start on it: printed as one line of JSON, for a launcher to bring home.

It needs Python alone and imports none of the packages that it looks for: their versions are read from their files, so
that a host answers in a tenth of a second, and what is broken cannot break the answer.

    python -c "<this source>" hvdtrain train.py        # HVDTRAIN_FACTS {"host": "gpu01", "torch": "2.13.0", ...}
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time

PREFIX = "HVDTRAIN_FACTS "
PACKAGES = ("hvdtrain", "torch", "horovod", "mpi4py", "numpy", "safetensors")
VERSION_FILES = ("version.py", "_version.py", "__init__.py")
VERSION = re.compile(r"^__version__(?:\s*:[^=]+)?\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def version_of(package: str) -> str | None:
    """The version that an import would meet: None where there is no such package, "?" where it does not say."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None  # an empty folder of that name counts as a package for Python, but holds nothing
    for folder in spec.submodule_search_locations:
        for name in VERSION_FILES:
            match = VERSION.search(text_of(os.path.join(folder, name)))
            if match:
                return match.group(1)
    return recorded(package)


def recorded(package: str) -> str:
    """The version that the installer recorded."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def text_of(path: str) -> str:
    """The start of a file, or nothing where it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(200000)
    except OSError:
        return ""


def mpi() -> str | None:
    """The first line of `mpirun --version`; None where there is none."""
    path = shutil.which("mpirun")
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode(errors="replace").strip().split("\n")[0]


def shared_memory_bytes() -> int | None:
    """What is free in /dev/shm; None where there is none."""
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def facts(command: list[str]) -> dict[str, object]:
    """Everything that is asked; `command` is what the ranks will run."""
    files = [word for word in command[1:] if word.endswith(".py")]
    found: dict[str, object] = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "mpi": mpi(),
        "clock_s": time.time(),
        "shm_bytes": shared_memory_bytes(),
        "cores": len(os.sched_getaffinity(0)),
        "program": shutil.which(command[0]) if command else None,
        "files_missing": [path for path in files if not os.path.exists(path)],
    }
    found.update({package: version_of(package) for package in PACKAGES})
    return found


if __name__ == "__main__":
    sys.path[0:1] = []  # neither the current folder nor this file's own is where a rank would import from
    print(PREFIX + json.dumps(facts(sys.argv[1:])), flush=True)
