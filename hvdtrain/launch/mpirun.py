"""The command for Open MPI 4 and 5: pure, from a specification to an argument list with reasons.

The two differ in how they are told to stay on one network and how to call ssh; nothing else. No option ever forces TCP
where UCX or InfiniBand would be taken: the network only limits TCP, when that is used.

    invocation = build(spec, Tool(flavour="openmpi", version=(5, 0, 11), path="mpirun"), os.environ)
    invocation.argv
    # ("mpirun", "-np", "2", "--map-by", "slot", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", ...,
    #  "hvdtrain", "run", "digits")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hvdtrain.errors import LaunchError
from hvdtrain.launch import placement, ssh
from hvdtrain.launch.environment import passed_names
from hvdtrain.launch.network import NETWORK_VARIABLE
from hvdtrain.launch.spec import Host, Invocation, LaunchSpec, Option, Variable
from hvdtrain.launch.tool import Tool
from hvdtrain.launch.warden import VARIABLE as TOKEN_VARIABLE

ROOT_VARIABLES = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)


def build(spec: LaunchSpec, tool: Tool, env: Mapping[str, str]) -> Invocation:
    """The invocation of Open MPI's mpirun for `spec`; `env` is the environment that it will inherit.

    Raises:
        LaunchError: the hosts have not enough slots, or Open MPI cannot be given one of them.
    """
    variables = (*root_variables(spec, tool), *job_variables(spec))
    passed = passed_names(with_variables(env, variables), spec.env_patterns) if spec.spans_hosts else ()
    return Invocation(
        program=tool.path,
        options=(
            *_placing(spec, tool),
            *tuning(spec),
            *_network(spec, tool),
            *ssh_option(spec, tool),
            *_exports(passed),
        ),
        command=spec.command,
        variables=variables,
        passed=passed,
        notes=(f"launcher: {tool.text}", placement.thread_note(env)),
        session_variable=session_variable(tool),
    )


def with_variables(env: Mapping[str, str], variables: tuple[Variable, ...]) -> dict[str, str]:
    """`env` as it is once `variables` are set in it."""
    return {**env, **{variable.name: variable.value for variable in variables}}


def root_variables(spec: LaunchSpec, tool: Tool) -> tuple[Variable, ...]:
    """What Open MPI wants set before it runs as root."""
    names = ROOT_VARIABLES if tool.version[0] >= 5 else ROOT_VARIABLES[:2]
    return tuple(
        Variable(n, "1", "Open MPI refuses to run as root unless it is told to") for n in names if spec.as_root
    )


def session_variable(tool: Tool) -> str:
    """What names Open MPI 5 the folder in which its mpirun keeps the files of a session.

    By itself it takes `ompi.PID` under TMPDIR. One that was killed leaves them there, and the next mpirun that happens
    to get the same process number ends at once with status 213 ("the PMIx server's listener thread failed to start").
    """
    return "PRTE_MCA_prte_local_tmpdir_base" if tool.version[0] >= 5 else ""


def job_variables(spec: LaunchSpec) -> Iterator[Variable]:
    """What every rank is told of its job: its network, and the token by which its processes are found."""
    if spec.network:
        yield Variable(NETWORK_VARIABLE, spec.network, "each rank finds its own interface in it for Gloo and NCCL")
    for name, value in spec.tuned:
        yield Variable(name, value, placement.WHY_TUNED)
    if spec.token:
        yield Variable(TOKEN_VARIABLE, spec.token, "marks the processes of this job, so that none is left on any host")


def _placing(spec: LaunchSpec, tool: Tool) -> Iterator[Option]:
    yield Option(("-np", str(spec.size)), "the number of ranks")
    if places := spec.places():
        listed = ",".join(f"{_host(host, tool)}:{count}" for host, count in places)
        yield Option(("--host", listed), "the hosts in the order of the ranks, with how many each gets")
    if not spec.spans_hosts and spec.size > spec.cores_per_host:
        why = f"{spec.size} ranks on {spec.cores_per_host} cores are meant, and no mistake"
        yield Option(("--map-by", "slot:OVERSUBSCRIBE"), why)
    else:
        yield Option(("--map-by", "slot"), "one host is filled after the other: neighbours in the ring share it")


def _host(host: Host, tool: Tool) -> str:
    if host.user and tool.version[0] < 5:
        raise LaunchError(
            f"start ranks on {host.login} with {tool.text}",
            found="a user name, which its option --host does not take before version 5",
            remedy=f"put `User {host.user}` under `Host {host.name}` in ~/.ssh/config, and name the host alone",
        )
    if ":" in host.name:
        raise LaunchError(
            f"start ranks on {host.name} with Open MPI",
            found="an IPv6 address, which its option --host cannot hold",
            remedy="give the host a name (/etc/hosts, or Host in your ssh configuration)",
        )
    return host.login


def tuning(spec: LaunchSpec) -> Iterator[Option]:
    """What makes CPU training fast and the output quiet."""
    if spec.binding == "core":
        yield Option(("--bind-to", "core"), placement.WHY_TUNED)
    else:
        yield Option(("--bind-to", "none"), placement.WHY_UNBOUND)
    if why := placement.why_yield(spec):
        yield Option(("--mca", "mpi_yield_when_idle", "1"), why)
    yield Option(("--mca", "btl_base_warn_component_unused", "0"), "no warning for each network card that is not there")


def _network(spec: LaunchSpec, tool: Tool) -> Iterator[Option]:
    if not spec.network:
        return
    yield Option(
        ("--mca", "btl_tcp_if_include", spec.network), "where MPI uses TCP, on this network (it does not force TCP)"
    )
    flag = ("--prtemca", "prte_if_include") if tool.version[0] >= 5 else ("--mca", "oob_tcp_if_include")
    yield Option((*flag, spec.network), "the launcher's own daemons talk on this network")


def ssh_option(spec: LaunchSpec, tool: Tool) -> Iterator[Option]:
    """How Open MPI is to call ssh, where it calls it at all."""
    if not spec.spans_hosts:
        return
    flag = ("--prtemca", "plm_ssh_args") if tool.version[0] >= 5 else ("--mca", "plm_rsh_args")
    yield Option((*flag, " ".join(ssh.options(spec.connect_timeout_s))), ssh.WHY)


def _exports(passed: tuple[str, ...]) -> Iterator[Option]:
    for name in passed:
        yield Option(("-x", name), "environment for the other hosts (the name; its value travels inside Open MPI)")
