"""What is installed here, found out without importing any of it into this process.

Versions come from metadata; whether torch and Horovod can be imported, and what mpi4py has found, is tried in processes
of their own, which may crash.

    facts = software_facts(os.environ, prefix=Path(sys.prefix))
    facts.horovod, facts.horovod_fault, facts.controllers
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdtrain.checks.software import SoftwareFacts
from hvdtrain.errors import LaunchError
from hvdtrain.install import linkage, record
from hvdtrain.install.facts import find_python, parse_mpi, version_of
from hvdtrain.launch.tool import find_tool

PROBE = Path(__file__).with_name("library_probe.py")
PROBE_LIMIT_S = 120.0  # the first import of torch from a cold network disk takes most of it

Probe = Callable[[str], tuple[dict[str, Any], str]]


def probe(what: str) -> tuple[dict[str, Any], str]:
    """What an import in a process of its own has told, and why it did not come to its end; "" when it did."""
    argv = [sys.executable, "-P", str(PROBE), what]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {}, f"the import had not ended after {PROBE_LIMIT_S:.0f} s"
    learned: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            learned |= json.loads(line)
    return learned, fault_of(done.returncode, done.stderr)


def fault_of(returncode: int, stderr: str) -> str:
    """Why a process ended as it did, in a line; "" where it ended well."""
    if returncode == 0:
        return ""
    if returncode < 0:
        return f"it ended by {signal.Signals(-returncode).name}"
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else f"exit status {returncode}"


def _libraries(probed: Probe) -> dict[str, Any]:
    torch, horovod, mpi4py = version_of("torch"), version_of("horovod"), version_of("mpi4py")
    facts: dict[str, Any] = {"torch": torch, "horovod": horovod, "mpi4py": mpi4py}
    if torch:
        learned, fault = probed("horovod")
        facts |= {"gpus": learned.get("gpus", 0), "nccl": learned.get("nccl", False)}
        facts["controllers"] = tuple(learned["controllers"]) if "controllers" in learned else None
        if fault and "gpus" not in learned:
            facts["torch_fault"] = fault
        elif fault and horovod:
            facts["horovod_fault"] = fault
    elif horovod:
        facts["horovod_fault"] = "it needs torch"
    if mpi4py:
        learned, facts["mpi4py_fault"] = probed("mpi4py")
        facts["mpi4py_mpi"] = mpi_name(learned.get("mpi4py_mpi", ""))
    return facts


def mpi_name(description: str) -> str:
    """Library and version from what an MPI says of itself, or its first line."""
    parsed = parse_mpi(description)
    return " ".join(parsed) if parsed else description.split("\n")[0].strip()[:80]


def horovods_mpi(prefix: Path) -> tuple[str | None, str]:
    """The torch that Horovod was built for, and its MPI: as recorded, or by what its file needs."""
    if noted := record.read(prefix):
        return noted.target.torch, noted.target.mpi
    library = linkage.horovod_library()
    return None, linkage.family(linkage.needed(library)) if library and library.is_file() else ""


def _launchers(env: Mapping[str, str]) -> dict[str, Any]:
    path = env.get("PATH", "")
    facts: dict[str, Any] = {"srun": shutil.which("srun", path=path), "mpirun": shutil.which("mpirun", path=path)}
    try:
        tool = find_tool("mpirun", env)
    except LaunchError as error:
        return facts | {"mpirun_fault": error.found}
    return facts | {"mpirun_mpi": tool.text if tool else ""}


def software_facts(
    env: Mapping[str, str], *, prefix: Path, probed: Probe = probe, devices: Path = Path("/dev")
) -> SoftwareFacts:
    """Find out what is installed.

    Args:
        env: PATH and CXX are read.
        prefix: the environment that holds the record of Horovod's build.
        probed: tries an import in a process of its own.
        devices: where the operating system has its devices.
    """
    interpreter = find_python()
    built_for, horovod_mpi = horovods_mpi(prefix)
    return SoftwareFacts(
        python=platform.python_version(),
        environment=interpreter.kind,
        headers=interpreter.has_headers,
        compiler=shutil.which(env.get("CXX") or "g++", path=env.get("PATH", "")),
        built_for=built_for,
        horovod_mpi=horovod_mpi,
        mpi_bin=record.mpi_bin(prefix),
        gpu_devices=sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in devices.iterdir()),
        **_libraries(probed),
        **_launchers(env),
    )
