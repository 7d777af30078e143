"""Which launcher is there, in which flavour and version: read from the tool's own version output.

The name of a program proves nothing (`mpirun` and `mpiexec` exist in four MPIs), so it is always asked.

    tool = find_tool("mpirun", os.environ)         # Tool(flavour="openmpi", version=(5, 0, 11), path="/opt/.../mpirun")
    identify("HYDRA build details:\\n    Version:   4.2.3 ...")                    # ("hydra", (4, 2, 3))
    if tool is None:
        ...                                         # not on PATH
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvdtrain.errors import LaunchError

VERSION_TIMEOUT_S = 20

# flavour -> what its version output holds; the first that matches is taken (Intel MPI is a Hydra, and says both)
SIGNATURES: tuple[tuple[str, str], ...] = (
    ("openmpi", r"\(Open(?: MPI|RTE)\)\s+(\d+(?:\.\d+)*)"),
    ("intel", r"Intel\(R\) MPI Library.*?Version\s+(\d+(?:\.\d+)*)"),
    ("hydra", r"HYDRA build details:.*?Version:\s+(\d+(?:\.\d+)*)"),
    ("slurm", r"^slurm(?:-wlm)?\s+(\d+(?:\.\d+)*)"),
)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A launcher that was asked for its version.

    Attributes:
        flavour: ``openmpi``, ``hydra`` (MPICH), ``intel``, ``slurm`` or ``horovod``.
        version: its numbers, the most significant first.
        path: what to execute.
        assumed: True where no such tool was found and this is what a dry run supposes.
    """

    flavour: str
    version: tuple[int, ...]
    path: str
    assumed: bool = False

    @property
    def text(self) -> str:
        """Flavour and version for a person: ``Open MPI 5.0.11``."""
        names = {"openmpi": "Open MPI", "hydra": "MPICH (Hydra)", "intel": "Intel MPI (Hydra)", "slurm": "SLURM"}
        width = 2 if self.flavour == "slurm" else 1  # SLURM counts in years and months: 22.05.8
        numbers = [f"{number:0{width}}" for number in self.version[:2]] + [str(n) for n in self.version[2:]]
        name = f"{names.get(self.flavour, 'Horovod')} {'.'.join(numbers)}"
        return f"{name} (assumed: there is no {self.path} on PATH here)" if self.assumed else name


ASSUMED = {
    "mpirun": Tool(flavour="openmpi", version=(5, 0), path="mpirun", assumed=True),
    "horovodrun": Tool(flavour="horovod", version=(0, 28, 1), path="horovodrun", assumed=True),
    "srun": Tool(flavour="slurm", version=(22, 5), path="srun", assumed=True),
}


def identify(output: str) -> tuple[str, tuple[int, ...]] | None:
    """Flavour and version from what a launcher printed for ``--version``; None for anything unknown."""
    for flavour, pattern in SIGNATURES:
        if match := re.search(pattern, output, re.DOTALL | re.MULTILINE):
            return flavour, tuple(map(int, match[1].split(".")))
    if match := re.fullmatch(r"\s*(\d+(?:\.\d+)+)\s*", output):  # horovodrun prints the number alone
        return "horovod", tuple(map(int, match[1].split(".")))
    return None


def ask_version(path: str, env: Mapping[str, str]) -> str:
    """What the program at `path` prints for ``--version``, on either stream; empty when it cannot be run."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, env=dict(env), timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout or done.stderr


def find_tool(
    name: str, env: Mapping[str, str], ask: Callable[[str, Mapping[str, str]], str] = ask_version
) -> Tool | None:
    """The launcher called `name` on the ``PATH`` of `env`, or at that path; None when there is none.

    Raises:
        LaunchError: it is there, but its version output is of no launcher that hvdtrain knows.
    """
    path = shutil.which(name, path=env.get("PATH", ""))
    if path is None:
        return None
    output = ask(path, env)
    if (found := identify(output)) is None:
        raise LaunchError(
            f"start ranks with {path}",
            found=f"`{path} --version` says: {' '.join(output.split())[:200] or 'nothing'}",
            remedy="hvdtrain knows Open MPI, MPICH, Intel MPI, horovodrun and srun: put one of them first on PATH",
        )
    return Tool(flavour=found[0], version=found[1], path=path)
