"""The hosts that a batch system gave to the job that we are in, read from its environment.

given = allocation(os.environ)             # Allocation(system="SLURM", hosts=(...), source="SLURM_JOB_NODELIST=...")
slurm_hosts("node[1-3]", "2(x2),1")        # node1 and node2 with two slots, node3 with one
lsf_hosts("hostA 4 hostB 2")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import HostFileError
from hvdtrain.launch import hostfile
from hvdtrain.launch.spec import Host

REPEAT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a batch system gave: which system, the hosts, the cores on each, and the variable that says so."""

    system: str
    hosts: tuple[Host, ...]
    source: str
    cores_per_host: int | None = None


def allocation(env: Mapping[str, str]) -> Allocation | None:
    """The hosts of the SLURM, PBS or LSF job that `env` belongs to; None outside of any.

    Raises:
        HostFileError: the variables are there but make no sense.
    """
    if nodes := env.get("SLURM_JOB_NODELIST"):
        tasks = env.get("SLURM_TASKS_PER_NODE") or env.get("SLURM_JOB_CPUS_PER_NODE", "")
        hosts = slurm_hosts(nodes, tasks)
        cores = min(_repeated(env.get("SLURM_JOB_CPUS_PER_NODE", ""), most=len(hosts)) or [0]) or None
        return Allocation(system="SLURM", hosts=hosts, source=f"SLURM_JOB_NODELIST={nodes}", cores_per_host=cores)
    if path := env.get("PBS_NODEFILE"):
        return Allocation(system="PBS", hosts=hostfile.read(Path(path)), source=f"PBS_NODEFILE={path}")
    if text := env.get("LSB_MCPU_HOSTS"):
        return Allocation(system="LSF", hosts=lsf_hosts(text), source=f"LSB_MCPU_HOSTS={text}")
    return None


def slurm_hosts(node_list: str, tasks_per_node: str) -> tuple[Host, ...]:
    """The hosts of ``SLURM_JOB_NODELIST`` with the slots of ``SLURM_TASKS_PER_NODE``, such as ``2(x3),1``.

    Raises:
        HostFileError: one of them cannot be read, or they are of different lengths.
    """
    hosts = hostfile.parse(node_list, "SLURM_JOB_NODELIST")
    counts = _repeated(tasks_per_node, most=len(hosts))
    if counts is None or len(counts) != len(hosts) or 0 in counts:
        raise HostFileError(
            "read the hosts of the SLURM job",
            found=f"SLURM_TASKS_PER_NODE={tasks_per_node!r} for the {len(hosts)} hosts of {node_list!r}",
            remedy="a number for each host, such as SLURM_TASKS_PER_NODE='2(x3),1', or name the hosts with -H",
        )
    return tuple(Host(name=host.name, slots=count) for host, count in zip(hosts, counts, strict=True))


def _repeated(text: str, most: int) -> list[int] | None:
    counts: list[int] = []
    for part in text.split(","):
        match = REPEAT.fullmatch(part.strip())
        if match is None or int(match[2] or 1) > most:
            return None
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def lsf_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of ``LSB_MCPU_HOSTS``: names and slots in turn.

    Raises:
        HostFileError: it is not that.
    """
    words = text.split()
    if len(words) % 2:
        raise HostFileError(
            "read the hosts of the LSF job",
            found=f"LSB_MCPU_HOSTS={text!r}: {len(words)} words",
            remedy="`hostA 4 hostB 4`: a number after each host",
        )
    pairs = zip(words[0::2], words[1::2], strict=True)
    return hostfile.parse("\n".join(f"{name} slots={count}" for name, count in pairs), "LSB_MCPU_HOSTS")
