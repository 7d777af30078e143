"""What a figure depends on: versions, cores, load and flags, recorded beside it.

before = observe(os.environ)
...                                        # measure
circumstances = before.closed(load_average())
circumstances.busy                         # True: others used the machine when it began
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("hvdtrain", "torch", "horovod", "mpi4py", "numpy")
FLAGS = ("HOROVOD_*", "HVDTRAIN_*", "OMP_*", "MKL_*", "OMPI_MCA_*", "PRTE_MCA_*", "GLOO_*", "TORCH_*", "KMP_*")
QUIET_LOAD = 0.25  # runnable processes per core before the first measurement, up to which a machine is quiet


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Where and how figures were measured.

    Attributes:
        versions: of the packages, of Python, of the MPI and of the kernel.
        processor: its model name.
        cores: that this process may use.
        load_before: mean number of runnable processes over the last minute, before the first measurement.
        load_after: the same after the last; it holds the benchmark's own.
        flags: environment variables that change how ranks run, and that jobs inherit.
        commands: how each side was started; empty where all are measured in this process.
        starts: how often each side was started.
    """

    versions: Mapping[str, str]
    processor: str
    cores: int
    load_before: float
    load_after: float | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0

    @property
    def busy(self) -> bool:
        """Whether something else kept the machine busy when the measurement began."""
        return self.load_before > QUIET_LOAD * self.cores

    def closed(self, load: float, *, starts: int, commands: Mapping[str, str] | None = None) -> Circumstances:
        """The same, complete after the last measurement."""
        return replace(self, load_after=load, starts=starts, commands=commands or {})

    def as_json(self) -> dict[str, Any]:
        """All of it, and whether the machine was busy."""
        return asdict(self) | {"busy": self.busy}


def load_average() -> float:
    """Mean number of runnable processes over the last minute."""
    return round(os.getloadavg()[0], 2)


def observe(env: Mapping[str, str], *, cpuinfo: Path = Path("/proc/cpuinfo")) -> Circumstances:
    """The circumstances now."""
    return Circumstances(
        versions={name: found for name in PACKAGES if (found := _version(name))}
        | {"python": platform.python_version(), "mpi": _mpi(env), "kernel": platform.release()},
        processor=processor(cpuinfo),
        cores=len(os.sched_getaffinity(0)),
        load_before=load_average(),
        flags=flags(env),
    )


def flags(env: Mapping[str, str]) -> dict[str, str]:
    """The variables among `env` that change how ranks run."""
    return {name: env[name] for name in sorted(env) if any(fnmatchcase(name, pattern) for pattern in FLAGS)}


def processor(cpuinfo: Path) -> str:
    """The model name that the kernel reports, or the machine's kind where it reports none."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _mpi(env: Mapping[str, str]) -> str:
    path = shutil.which("mpirun", path=env.get("PATH", ""))
    if path is None:
        return "none on PATH"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return (done.stdout or done.stderr).partition("\n")[0].strip()
