"""Built wheels, each in a folder named for everything it depends on, with the hash of each file in it.

A folder appears whole or not at all (it is filled beside and renamed), so that any number of set-ups may share a cache;
a file whose hash is not the recorded one is never installed.

    root = default_root(os.environ)                 # ~/.cache/hvdtrain/wheels
    with locked(root, target):                      # the second of two set-ups waits instead of compiling too
        entry = lookup(root, target) or publish(root, target, folder_of_wheels)
    entry.wheel, entry.folder
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.install.target import Target

MANIFEST = "manifest.json"
LOG = logging.getLogger("hvdtrain.install")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A verified folder of the cache: Horovod's wheel, and in a `--wheel-dir` the wheels that it needs."""

    folder: Path
    wheel: Path
    sha256: str


def default_root(env: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/hvdtrain/wheels``, by default in ``~/.cache``."""
    home = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or Path.home(), ".cache"))
    return Path(home, "hvdtrain", "wheels")


def sha256_of(path: Path) -> str:
    """The hash of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fault_of(folder: Path) -> str | None:
    """What is wrong with a folder of the cache, None when every file in it is what its manifest says."""
    try:
        hashes = json.loads((folder / MANIFEST).read_text())["sha256"]
        changed = [name for name, expected in hashes.items() if sha256_of(folder / Path(name).name) != expected]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{', '.join(changed)} changed after being written" if changed else None


def lookup(root: Path, target: Target) -> Entry | None:
    """The verified entry for a target; None (with a warning, if it is damaged) when there is none."""
    folder = root / target.key
    if not folder.is_dir():
        return None
    if fault := fault_of(folder):
        LOG.warning("%s is not used: %s", folder, fault)
        return None
    hashes = json.loads((folder / MANIFEST).read_text())["sha256"]
    names = [name for name in hashes if name.startswith("horovod-")]
    if len(names) != 1:
        LOG.warning("%s is not used: it holds %d wheels of Horovod", folder, len(names))
        return None
    return Entry(folder=folder, wheel=folder / names[0], sha256=hashes[names[0]])


def targets_in(root: Path) -> list[Target]:
    """The targets of all readable entries, in the order of their folder names."""
    found = []
    for path in sorted(root.glob(f"*/{MANIFEST}")):
        try:
            found.append(Target.from_json(json.loads(path.read_text())["target"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            LOG.warning("%s cannot be read: %s", path, error)
    return found


@contextmanager
def stage(root: Path) -> Iterator[Path]:
    """A new private folder inside `root`, on its file system; removed at the end, with whatever is left in it."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".stage-", dir=root) as name:
        yield Path(name)


def publish(root: Path, target: Target, wheels: Path) -> Entry:
    """Make the folder `wheels`, which must lie in a `stage` of `root`, the entry for a target.

    When another set-up was faster, its entry stays and is returned; a damaged one is replaced.

    Raises:
        OSError: the entry could not be written.
    """
    hashes = {path.name: sha256_of(path) for path in sorted(wheels.glob("*.whl"))}
    manifest = json.dumps({"target": target.to_json(), "sha256": hashes}, indent=2)
    (wheels / MANIFEST).write_text(manifest + "\n")
    folder = root / target.key
    if folder.exists() and lookup(root, target) is None:
        _set_aside(folder)
    try:
        wheels.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    entry = lookup(root, target)
    if entry is None:
        raise OSError(errno.EIO, "what was just written reads otherwise", str(folder))
    return entry


def _set_aside(folder: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:
        LOG.info("another set-up has taken %s away", folder)
    shutil.rmtree(aside)


@contextmanager
def locked(root: Path, target: Target) -> Iterator[None]:
    """Hold the right to build a target; where files cannot be locked, only the renaming protects, which is enough."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / f".{target.key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            LOG.info("waiting for another set-up that builds %s", target.key)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            LOG.warning("%s cannot be locked (%s): another set-up may build the same", root, error)
        yield
    finally:
        os.close(descriptor)
