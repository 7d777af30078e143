"""What the Horovod in an environment was built for: a small file at the environment's top, written after the proof.

It also holds the hash of the package's own list of files, so that a Horovod which something else has put there since is
not taken for the recorded one.

    write(Path(sys.prefix), target, wheel_sha256=entry.sha256)
    read(Path(sys.prefix))                      # Record(target=..., ...), or None when nothing fits
    check(Path(sys.prefix), torch="2.14.1")     # InstallError: built for 2.13.0, do: hvdtrain install-horovod
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import InstallError
from hvdtrain.install.target import Target
from hvdtrain.versions import release

NAME = "hvdtrain-horovod.json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was installed, and for what it was built."""

    target: Target
    wheel_sha256: str
    files_sha256: str


def files_sha256() -> str | None:
    """The hash of the installed Horovod's list of files; None when there is no Horovod."""
    importlib.invalidate_caches()
    try:
        text = importlib.metadata.distribution("horovod").read_text("RECORD")
    except importlib.metadata.PackageNotFoundError:
        return None
    return hashlib.sha256((text or "").encode()).hexdigest()


def write(prefix: Path, target: Target, *, wheel_sha256: str) -> None:
    """Record what has just been installed; written beside and renamed."""
    values = {"target": target.to_json(), "wheel_sha256": wheel_sha256, "files_sha256": files_sha256()}
    beside = prefix / f".{NAME}.new"
    beside.write_text(json.dumps(values, indent=2) + "\n")
    beside.replace(prefix / NAME)


def read(prefix: Path, *, installed: str | None = None) -> Record | None:
    """The record of the Horovod that is installed; None without a record, or when it is of another installation.

    Args:
        prefix: the environment.
        installed: what `files_sha256` gives; asked when not given.
    """
    try:
        values = json.loads((prefix / NAME).read_text())
        values["target"] = Target.from_json(values["target"])
        record = Record(**values)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # whatever it is, it is no record: the caller installs anew, which is always right
    installed = installed or files_sha256()
    return record if installed is not None and record.files_sha256 == installed else None


def mpi_bin(prefix: Path, *, installed: str | None = None) -> str:
    """The folder of the mpirun that fits the recorded Horovod; "" without a record."""
    record = read(prefix, installed=installed)
    return str(Path(record.target.mpi_prefix or prefix, "bin")) if record else ""


def check(prefix: Path, *, torch: str, installed: str | None = None) -> None:
    """Refuse a torch that is another than the one the recorded Horovod was built for; silent without a record.

    Raises:
        InstallError: Horovod has to be built again.
    """
    record = read(prefix, installed=installed)
    if record is None or record.target.torch == torch:
        return
    order = "newer" if release(torch) > release(record.target.torch) else "another"
    raise InstallError(
        f"use Horovod with torch {torch}",
        found=f"a Horovod that was built for torch {record.target.torch}; this torch is {order}",
        remedy=f"hvdtrain install-horovod     (or: python -m pip install torch=={record.target.torch.split('+')[0]})",
    )
