"""Ranks of one job beside each other: who differs from the others, and whether those of a host fit on it.

Only the minority is named, with what the others have. Every rank holds the same facts, so every rank comes to the same
findings, and a failure ends all of them in order.

    everyone = [RankFacts.from_json(values) for values in collectives.gather_json(mine.to_json())]
    for finding in compare(everyone):
        finding.found                 # "rank 3 on gpu02: torch 2.12.1, the other 7 ranks: 2.13.0"
    preflight(everyone)               # LaunchError when one of them fails, or else the warnings
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hvdtrain.checks.finding import Finding, failed, warned
from hvdtrain.errors import LaunchError

SHOWN = 120  # characters of a value
NONE = "none"
# what ranks must have in common, and what to do where they have not; anything else only warns
MUST_AGREE = {
    "hvdtrain": "install one version of hvdtrain on every host, or use one environment on a shared file system",
    "torch": "install one torch on every host, or use one environment on a shared file system",
    "horovod": "hvdtrain install-horovod   on that host",
    "mpi": "put the same MPI first on PATH on every host: `module load` it in ~/.bashrc, too",
    "script": "copy the script to every host, or keep it on a shared file system",
}
REMEDIES = {
    "python": "use one environment on every host",
    "numpy": "use one environment on every host",
    "cuda": "install the same build of torch on every host",
    "nccl": "install the same build of torch on every host",
    "gpu": "ask the batch system for one kind of GPU: the slowest rank sets the pace",
    "cpu": "ask the batch system for one kind of host: the slowest rank sets the pace",
    "cores": "give every rank as many cores: --bind-to none, or hvdtrain launch",
    "limit": "raise it on that host (/etc/security/limits.conf, or LimitNOFILE and LimitMEMLOCK of its slurmd or sshd)",
}


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What one rank says of itself.

    Attributes:
        host: the name of its host.
        cores: the cores that it may use, as the operating system numbers them.
        host_cores: how many its host has.
        threads: what OMP_NUM_THREADS asks for; None where the rank takes its share.
        values: what is compared, by name: ``torch``, ``limit open files``, ``$NCCL_DEBUG``, ...
    """

    host: str
    cores: tuple[int, ...]
    host_cores: int
    threads: int | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The facts, as they are gathered."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RankFacts:
        """The facts of a gathered value."""
        return cls(**{**values, "cores": tuple(values["cores"])})


def share_of(rank: int, everyone: Sequence[RankFacts]) -> int:
    """The cores of a rank, where ranks of a host with the same set of cores share it evenly; at least 1."""
    mine = everyone[rank]
    return max(1, len(mine.cores) // sum((other.host, other.cores) == (mine.host, mine.cores) for other in everyone))


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers for a person.

    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _named(ranks: Sequence[int], everyone: Sequence[RankFacts]) -> str:
    hosts = list(dict.fromkeys(everyone[rank].host for rank in ranks))
    more = f" and {len(hosts) - 3} more hosts" if len(hosts) > 3 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)} on {', '.join(hosts[:3])}{more}"


def _shown(value: str) -> str:
    return value if len(value) <= SHOWN else value[: SHOWN - 3] + "..."


def _severity(name: str) -> tuple[bool, str]:
    if name in MUST_AGREE:
        return True, MUST_AGREE[name]
    if name.startswith("$"):
        return False, f"export {name[1:]} before the launch, or hvdtrain launch --env {name[1:]}"
    return False, REMEDIES.get(name.split()[0], "")


def _minorities(name: str, everyone: Sequence[RankFacts]) -> Iterator[Finding]:
    values = [rank.values.get(name, NONE) for rank in everyone]
    counted = Counter(values)
    if len(counted) == 1:
        return
    usual = max(counted, key=lambda value: (counted[value], value == values[0]))
    fatal, remedy = _severity(name)
    others = f"the other {counted[usual]} ranks" if counted[usual] > 1 else f"rank {values.index(usual)}"
    for value in counted:
        if value == usual:
            continue
        ranks = [rank for rank, theirs in enumerate(values) if theirs == value]
        found = f"{_named(ranks, everyone)}: {name} {_shown(value)}, {others}: {_shown(usual)}"
        make = failed if fatal else warned
        yield make(f"ranks agree on {name}", asked=f"the same {name} on every rank", found=found, remedy=remedy)


def _crowded_hosts(everyone: Sequence[RankFacts]) -> Iterator[Finding]:
    for host in dict.fromkeys(rank.host for rank in everyone):
        there = [rank for rank in everyone if rank.host == host]
        cores = len({core for rank in there for core in rank.cores})
        wanted = sum(rank.threads or 0 for rank in there)
        if wanted > cores:
            found = f"{len(there)} ranks on {host} want {wanted} threads (OMP_NUM_THREADS) on {cores} cores"
            yield warned(
                "threads fit the cores", found=found, remedy="unset OMP_NUM_THREADS   (a rank takes its share)"
            )


def _bound_ranks(everyone: Sequence[RankFacts]) -> Iterator[Finding]:
    bound = [rank for rank, facts in enumerate(everyone) if len(facts.cores) == 1 < facts.host_cores]
    if bound:
        found = f"{_named(bound, everyone)}: bound to one core, which Horovod's background thread has to share"
        yield warned("room for two threads a rank", found=found, remedy="mpirun --bind-to none ..., or hvdtrain launch")


def compare(everyone: Sequence[RankFacts]) -> tuple[Finding, ...]:
    """What is wrong with these ranks as one job, failures first; empty when nothing is.

    Args:
        everyone: the facts of all ranks, in rank order.
    """
    names = dict.fromkeys(name for rank in everyone for name in rank.values)
    findings = [finding for name in names for finding in _minorities(name, everyone)]
    findings += [*_crowded_hosts(everyone), *_bound_ranks(everyone)]
    return tuple(sorted(findings, key=lambda finding: finding.status != "fail"))


def preflight(everyone: Sequence[RankFacts]) -> tuple[Finding, ...]:
    """Refuse ranks that cannot be one job.

    Returns:
        What is only suspicious.

    Raises:
        LaunchError: on every rank alike, with all that fails.
    """
    findings = compare(everyone)
    fatal = [finding for finding in findings if finding.status == "fail"]
    if not fatal:
        return findings
    raise LaunchError(
        f"make one job of {len(everyone)} ranks",
        found="\n         ".join(finding.found for finding in fatal),
        remedy="\n         ".join(dict.fromkeys(finding.remedy for finding in fatal)),
        agreed=True,
    )
