"""What the user wants started, and what a builder makes of it, as frozen values.

A builder (`mpirun`, `hydra`, `horovodrun`, `srun`) is a pure function from a `LaunchSpec`, a `Tool` and an environment
to an `Invocation`, in which every option and every variable carries the reason why it is there.

    spec = LaunchSpec(
        command=("hvdtrain", "run", "digits"),
        size=4,
        hosts=(Host(name="gpu01", slots=2), Host(name="gpu02", slots=2)),
        cores_per_host=8,
    )
    spec.places()               # ((Host("gpu01"), 2), (Host("gpu02"), 2)): ranks 0 and 1 on gpu01, 2 and 3 on gpu02
    invocation.argv             # ("mpirun", "-np", "4", ..., "hvdtrain", "run", "digits")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import LaunchError

CONNECT_TIMEOUT_S = 10  # for one ssh connection; unreachable hosts must be named in less than 15 s


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host and how many ranks it takes.

    Attributes:
        name: as ssh and MPI are to call it: a name, an IPv4 address, or an IPv6 address without brackets.
        slots: how many ranks it takes; one where the source does not say.
        max_slots: up to how many it takes when there are not enough slots elsewhere (Open MPI's word); None is `slots`.
        user: the account to use there; None is what ssh is configured for.
    """

    name: str
    slots: int = 1
    max_slots: int | None = None
    user: str | None = None

    @property
    def limit(self) -> int:
        """How many ranks it takes at most."""
        return self.slots if self.max_slots is None else max(self.max_slots, self.slots)

    @property
    def login(self) -> str:
        """What ssh is given: ``user@name``, or the name alone."""
        return f"{self.user}@{self.name}" if self.user else self.name


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What is to be started where, in words that belong to no launcher.

    Attributes:
        command: program and arguments of each rank.
        size: how many ranks.
        hosts: in the order in which ranks fill them; empty means this host alone, which takes any number of ranks.
        cores_per_host: cores that the ranks of one host share; taken from this host, as hosts of a job are alike.
        network: the network (CIDR) that the ranks' traffic is to use; None leaves it to the MPI.
        interface: this host's interface in that network, for launchers that know names only; None where it has none.
        env_patterns: patterns of further environment variables that other hosts are to get.
        as_root: whether the launcher runs as root, which Open MPI must be told.
        connect_timeout_s: limit for one ssh connection.
        token: marks the job's processes on every host, so that they are found; empty where nothing is started.
        binding: `core` binds each rank to one, by Open MPI's mpirun; None binds none.
        yielding: whether a waiting MPI gives its core away; None decides it by ranks and cores.
        tuned: further variables of the job, from a profile: name, value.
    """

    command: tuple[str, ...]
    size: int
    cores_per_host: int
    hosts: tuple[Host, ...] = ()
    network: str | None = None
    interface: str | None = None
    env_patterns: tuple[str, ...] = ()
    as_root: bool = False
    connect_timeout_s: int = CONNECT_TIMEOUT_S
    token: str = ""
    binding: str | None = None
    yielding: bool | None = None
    tuned: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.command:
            raise LaunchError("start a job", found="no command", remedy="hvdtrain launch -np 2 -- hvdtrain run digits")
        if self.size < 1:
            raise LaunchError(f"start {self.size} ranks", found="a job has at least one rank", remedy="-np 1")

    @property
    def spans_hosts(self) -> bool:
        """Whether hosts were named, so that ranks may start elsewhere than here."""
        return bool(self.hosts)

    def places(self) -> tuple[tuple[Host, int], ...]:
        """The hosts that get ranks, each with how many, in the order of the ranks; empty for this host alone.

        Hosts are filled up to their slots in order; what does not fit goes to those with a higher `max_slots`.

        Raises:
            LaunchError: the hosts have not enough slots.
        """
        if not self.hosts:
            return ()
        counts = fill([host.slots for host in self.hosts], self.size)
        missing = self.size - sum(counts)
        extra = fill([host.limit - host.slots for host in self.hosts], missing)
        if sum(extra) < missing:
            raise self._too_small()
        pairs = zip(self.hosts, map(sum, zip(counts, extra, strict=True)), strict=True)
        return tuple((host, count) for host, count in pairs if count)

    def _too_small(self) -> LaunchError:
        listed = ",".join(f"{host.name}:{host.slots}" for host in self.hosts)
        slots = sum(host.limit for host in self.hosts)
        return LaunchError(
            f"start {self.size} ranks (-np {self.size})",
            found=f"{slots} slots on {len(self.hosts)} host{'s' if len(self.hosts) > 1 else ''}: {listed}",
            remedy=f"-np {slots}, or more slots for the hosts (-H {self.hosts[0].name}:{self.size},...)",
        )

    def busiest(self) -> int:
        """The largest number of ranks on one host."""
        return max((count for _, count in self.places()), default=self.size)


def fill(capacities: list[int], items: int) -> list[int]:
    """How many of `items` each place gets when they are filled in order; the sum may be less than `items`."""
    counts = []
    for capacity in capacities:
        counts.append(min(capacity, items))
        items -= counts[-1]
    return counts


@dataclass(frozen=True)
class Option:
    """Words of a command line that belong together, and why they are there."""

    words: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Variable:
    """An environment variable that the launcher itself is given, and why."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """A command that is ready to be run or shown.

    Attributes:
        program: the launcher, as it will be executed.
        options: what stands between the program and the command.
        command: the program of the ranks and its arguments.
        variables: set for the launcher, on top of the environment that it inherits.
        passed: names of the environment variables that other hosts get; values are never on the command line.
        kept: names that the launcher itself may have, where it would pass on all that it has; None keeps everything.
        notes: what was assumed or decided and is to be read in no option.
        false_success: what the launcher says on stderr where it started nothing and yet ends with 0.
        session_variable: names to the launcher a folder for its session, which every start gets new; empty: none.
    """

    program: str
    options: tuple[Option, ...]
    command: tuple[str, ...]
    variables: tuple[Variable, ...] = ()
    passed: tuple[str, ...] = ()
    kept: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    false_success: tuple[str, ...] = ()
    session_variable: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        """The argument list that is executed."""
        words = (word for option in self.options for word in option.words)
        return (self.program, *words, *self.command)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment that the launcher is executed with: what it may keep of `env`, and the variables on top."""
        own = {variable.name: variable.value for variable in self.variables}
        kept = env.keys() if self.kept is None else env.keys() & set(self.kept)
        return {name: value for name, value in env.items() if name in kept and name not in own} | own


def told_to_resume(command: tuple[str, ...]) -> bool:
    """Whether a command says itself from where it wants to resume."""
    return any(word.partition("=")[0] == "--resume" for word in command)


def is_training(command: tuple[str, ...]) -> bool:
    """Whether it is `hvdtrain run`."""
    return command[0].rpartition("/")[2] == "hvdtrain" and command[1:2] == ("run",)


def resuming(command: tuple[str, ...]) -> tuple[str, ...]:
    """A training that goes on from its last checkpoint, whatever it said; any other command as it is."""
    if not is_training(command):
        return command
    words = list(command)
    if "--resume" in words[:-1]:
        at = words.index("--resume")
        del words[at : at + 2]
    return (*(word for word in words if not word.startswith("--resume=")), "--resume", "auto")
