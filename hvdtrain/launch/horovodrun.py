"""The command for horovodrun with a fixed set of hosts under MPI: pure, from a specification to argv with reasons.

horovodrun calls mpirun by itself. It passes on *every* variable that it has, so it is given only those that other hosts
may have, and it knows networks by the name of an interface only, which must be the same on all hosts.

    invocation = build(spec, find_tool("horovodrun", os.environ), os.environ, mpi=find_tool("mpirun", os.environ))
    invocation.argv
    # ("horovodrun", "-np", "4", "-H", "gpu01:2,gpu02:2", "--mpi", ..., "hvdtrain", "run", "digits")
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from hvdtrain.errors import LaunchError
from hvdtrain.launch import placement
from hvdtrain.launch.environment import SESSION, passed_names
from hvdtrain.launch.mpirun import job_variables, root_variables, session_variable, ssh_option, with_variables
from hvdtrain.launch.spec import Invocation, LaunchSpec, Option, Variable
from hvdtrain.launch.tool import Tool

NOTE = (
    "horovodrun itself adds `-mca pml ob1` (no UCX), accepts unknown host keys when it tests ssh, and opens services "
    "that suit a trusted network only: prefer --launcher mpirun"
)


def build(spec: LaunchSpec, tool: Tool, env: Mapping[str, str], mpi: Tool) -> Invocation:
    """The invocation of horovodrun for `spec`; `mpi` is the mpirun that it will find.

    Raises:
        LaunchError: the hosts have not enough slots, or the network has no interface on this host.
    """
    variables = (*_root(spec, mpi), *job_variables(spec))
    names = (*SESSION, *spec.env_patterns)
    passed = passed_names(with_variables(env, variables), names) if spec.spans_hosts else ()
    return Invocation(
        program=tool.path,
        options=(*_placing(spec), *_network(spec), *_mpi_arguments(spec, mpi)),
        command=spec.command,
        variables=variables,
        passed=passed,
        kept=tuple(name for name in passed if name in env) if spec.spans_hosts else None,
        notes=(f"launcher: {tool.text} over {mpi.text}", placement.thread_note(env), NOTE),
        session_variable=session_variable(mpi) if mpi.flavour == "openmpi" else "",
    )


def _root(spec: LaunchSpec, mpi: Tool) -> tuple[Variable, ...]:
    return root_variables(spec, mpi) if mpi.flavour == "openmpi" else ()


def _placing(spec: LaunchSpec) -> Iterator[Option]:
    yield Option(("-np", str(spec.size)), "the number of ranks")
    if places := spec.places():
        listed = ",".join(f"{host.login}:{count}" for host, count in places)
        yield Option(("-H", listed), "the hosts in the order of the ranks, with how many each gets")
        yield Option(("--disable-cache",), "hosts are tested now, not taken from an hour ago")
    yield Option(("--mpi",), "ranks find each other through MPI; under Gloo exit statuses get lost")


def _network(spec: LaunchSpec) -> Iterator[Option]:
    if not spec.network or not spec.spans_hosts:
        return
    if spec.interface is None:
        raise LaunchError(
            f"use the network {spec.network} with horovodrun",
            found="horovodrun takes names of interfaces, and this host has none in that network",
            remedy="--launcher mpirun, which takes the network itself",
        )
    why = f"this host's interface in {spec.network}; horovodrun needs it to be called the same on all hosts"
    yield Option(("--network-interfaces", spec.interface), why)


def _mpi_arguments(spec: LaunchSpec, mpi: Tool) -> Iterator[Option]:
    if mpi.flavour != "openmpi":
        return
    crowd = not spec.spans_hosts and spec.size > spec.cores_per_host
    binding = "--bind-to none --map-by " + ("slot:OVERSUBSCRIBE" if crowd else "slot")
    why = f"{placement.WHY_UNBOUND}; horovodrun would say -bind-to, which Open MPI 5 takes for a program"
    yield Option((f"--binding-args={binding}",), why)
    words: list[str] = []
    reasons: list[str] = []
    if yielding := placement.why_yield(spec):
        words += ["--mca", "mpi_yield_when_idle", "1"]
        reasons.append(yielding)
    for option in ssh_option(spec, mpi):
        words += option.words
        reasons.append(option.why)
    if words:
        yield Option((f"--mpi-args={shlex.join(words)}",), "for mpirun: " + "; ".join(reasons))
