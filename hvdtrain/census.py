"""What one rank knows of itself, gathered once at its start and compared with the others.

Cheap and without effect: no program is run, no heavy library is imported, and no value that may be a secret leaves the
rank. The libraries are named by who has loaded them.

    mine = observe(os.environ, host=socket.gethostname(), libraries={"torch": torch.__version__})
    mine.values["script"]                    # the hash of the user's script
    rendezvous_answers(os.environ)           # False: variables of a horovodrun that has ended
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import socket
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from hvdtrain.checks.ranks import RankFacts
from hvdtrain.launch.environment import passed_names

LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "memory": resource.RLIMIT_AS,
}
LONGEST = 500  # characters of a variable's value that travel; longer ones by a hash of the rest
# Where a host keeps things and how it speaks is its own business (mpirun puts itself into PATH on other hosts alone),
# and hvdtrain sets some of its own variables for one host.
OF_THE_HOST = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "LC_*", "TZ", "HVDTRAIN_*")
RENDEZVOUS_LIMIT_S = 5.0


def script_of(argv: Sequence[str]) -> Path | None:
    """The user's script: what Python runs, or for `hvdtrain run FILE.py` that file; None for a recipe or a module."""
    words = [word for word in argv[:1] if word.endswith(".py")]
    if argv and Path(argv[0]).name in {"hvdtrain", "__main__.py"}:
        words = [word for word in argv[1:3] if word.endswith(".py")]
    return next((Path(word) for word in words if Path(word).is_file()), None)


def _hash(path: Path) -> str:
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def _value(text: str) -> str:
    text = re.sub(r"://[^/@\s]+@", "://***@", text)  # user and password of a URL
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to a training, as ``$NAME``: what a launch would pass to other hosts."""
    names = (name for name in passed_names(env) if not any(fnmatchcase(name, pattern) for pattern in OF_THE_HOST))
    return {f"${name}": _value(env[name]) for name in names}


def limits() -> dict[str, str]:
    """The soft limits of this process."""
    soft = {name: resource.getrlimit(number)[0] for name, number in LIMITS.items()}
    return {f"limit {name}": "unlimited" if n == resource.RLIM_INFINITY else str(n) for name, n in soft.items()}


def cpu_model(text: str) -> str:
    """The kind of CPU, from the beginning of ``/proc/cpuinfo``."""
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def _first_of(path: Path, length: int) -> str:
    with path.open() as file:  # the whole of it costs 100 ms on a large host
        return file.read(length)


def observe(
    env: Mapping[str, str],
    *,
    host: str,
    libraries: Mapping[str, str],
    argv: Sequence[str] = (),
    cpuinfo: Path = Path("/proc/cpuinfo"),
) -> RankFacts:
    """The facts of this rank.

    Args:
        env: the environment it was started with.
        host: the name of its host.
        libraries: what it has loaded, name -> version.
        argv: how it was started.
        cpuinfo: the kernel's description of the CPUs.
    """
    threads, script = env.get("OMP_NUM_THREADS", "").split(",")[0], script_of(argv)
    cpu = {"cpu": cpu_model(_first_of(cpuinfo, 2048))} if cpuinfo.exists() else {}
    cores = tuple(sorted(os.sched_getaffinity(0)))
    own = {"python": platform.python_version(), "cores": str(len(cores))}
    own |= {"script": _hash(script)} if script else {}
    return RankFacts(
        host=host,
        cores=cores,
        host_cores=os.cpu_count() or 1,
        threads=int(threads) if threads.isdigit() else None,
        values={**libraries, **own, **cpu, **limits(), **variables(env)},
    )


def rendezvous_answers(env: Mapping[str, str]) -> bool | None:
    """Whether the horovodrun that the variables name can be reached; None where they name none."""
    address, port = env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"), env.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    if not address or not port.isdigit():
        return None
    try:
        socket.create_connection((address, int(port)), RENDEZVOUS_LIMIT_S).close()
    except OSError:
        return False
    return True
