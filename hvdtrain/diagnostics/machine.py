"""What this host has for ranks: cores, shared memory, rights, limits, disk, a clock.

Nothing is changed; one empty file is made and gone again where a run would be written, to compare clocks.

    facts = machine_facts(os.environ, ranks=2)
    facts.cores, facts.shm_free_bytes, facts.cma
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.checks.machine import MachineFacts
from hvdtrain.errors import HostFileError
from hvdtrain.launch.allocation import allocation

MEMORY_ACCESS = Path(__file__).with_name("memory_access.py")
BINDING_VARIABLES = (
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_rmaps_base_mapping_policy",
    "PRTE_MCA_hwloc_default_binding_policy",
    "PRTE_MCA_rmaps_default_mapping_policy",
    "HYDRA_BINDING",
    "I_MPI_PIN_DOMAIN",
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_TYPE",
)
TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronised
TIMEX_BYTES = 512  # more than `struct timex` has anywhere
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")


def quota_cores(text: str) -> float | None:
    """The cores that a container may use, from the text of cgroup v2's ``cpu.max``; None where there is no limit.

    >>> quota_cores("150000 100000")
    1.5
    """
    match = re.match(r"(\d+) (\d+)", text)
    return int(match[1]) / int(match[2]) if match else None


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use, by affinity and quota; at least 1."""
    by_affinity = len(os.sched_getaffinity(0))
    by_quota = quota_cores(quota.read_text()) if quota.is_file() else None
    return by_affinity if by_quota is None else max(1, min(by_affinity, int(by_quota)))


def _job(env: Mapping[str, str]) -> tuple[int | None, int]:
    """Ranks on the busiest host, and hosts, as the batch system has them."""
    try:
        given = allocation(env)
    except HostFileError:
        return None, 1  # the launch says what is wrong with it
    return (max(host.slots for host in given.hosts), len(given.hosts)) if given else (None, 1)


def free_bytes(path: Path) -> int | None:
    """What is free where `path` is or would be made; None where nothing can be written."""
    while not path.exists():
        path = path.parent
    if not os.access(path, os.W_OK):
        return None
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def skew_s(directory: Path) -> float | None:
    """The file system's clock less that of this host; None where nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b".")
            file.flush()
            return os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:
        return None


def synchronised() -> bool | None:
    """Whether the kernel says that its clock is kept by NTP; None where it says nothing."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "adjtimex"):
        return None
    state = libc.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    return None if state < 0 else bool(state != TIME_ERROR)


def memory_access() -> str | None:
    """The name of the error with which one process reads another's memory; "" where it can, None when not known."""
    try:
        argv = [sys.executable, "-P", str(MEMORY_ACCESS)]
        text = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"ok": "", "": None}.get(text, text)


def ptrace_scope(path: Path) -> int | None:
    """Yama's rule for who may look at whom; None where there is no Yama."""
    return int(path.read_text()) if path.is_file() else None


def _limit(number: int) -> int | None:
    soft = resource.getrlimit(number)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def machine_facts(
    env: Mapping[str, str],
    *,
    ranks: int | None = None,
    run_dir: Path = Path("runs"),
    shm: Path = Path("/dev/shm"),
    root: Path = Path("/"),
) -> MachineFacts:
    """Find out what this host has.

    Args:
        env: the launcher's and the batch system's variables are read.
        ranks: how many are to run here; else what the batch system has.
        run_dir: where runs would be written.
        shm: the shared memory.
        root: the root of the file system, for marks of containers and devices.
    """
    slots, hosts = _job(env)
    threads = env.get("OMP_NUM_THREADS", "").split(",")[0]
    stat = os.statvfs(shm) if shm.is_dir() and os.access(shm, os.W_OK) else None
    fast = root / "sys/class/infiniband"
    temporary = Path(env.get("TMPDIR") or "/tmp")
    return MachineFacts(
        host_cores=os.cpu_count() or 1,
        cores=usable_cores(),
        ranks=ranks or slots,
        hosts=hosts,
        threads=int(threads) if threads.isdigit() else None,
        binding={name: env[name] for name in BINDING_VARIABLES if name in env},
        shm_bytes=stat.f_blocks * stat.f_frsize if stat else None,
        shm_free_bytes=stat.f_bavail * stat.f_frsize if stat else None,
        cma=memory_access(),
        ptrace_scope=ptrace_scope(root / "proc/sys/kernel/yama/ptrace_scope"),
        in_container=any((root / mark.lstrip("/")).exists() for mark in CONTAINER_MARKS),
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        processes=_limit(resource.RLIMIT_NPROC),
        fast_network=fast.is_dir() and any(fast.iterdir()),
        free_bytes={str(path): free_bytes(path.absolute()) for path in (run_dir, temporary)},
        clock_behind_s=max(0.0, MEMORY_ACCESS.stat().st_mtime - time.time()),
        skew_s=skew_s(run_dir if run_dir.is_dir() else Path.cwd()),
        synchronised=synchronised(),
    )
