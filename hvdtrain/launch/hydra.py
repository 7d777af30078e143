"""The command for Hydra, the launcher of MPICH and of Intel MPI: pure, from a specification to argv with reasons.

The two share the command line, and differ in the variables that bind ranks and make a waiting rank yield.

    invocation = build(spec, Tool(flavour="hydra", version=(4, 2, 3), path="mpiexec"), os.environ)
    invocation.argv
    # ("mpiexec", "-n", "4", "-hosts", "gpu01:2,gpu02:2", "-bind-to", "none", "-genvlist", "PATH", ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hvdtrain.errors import LaunchError
from hvdtrain.launch import placement, ssh
from hvdtrain.launch.environment import passed_names
from hvdtrain.launch.mpirun import job_variables, with_variables
from hvdtrain.launch.spec import Host, Invocation, LaunchSpec, Option, Variable
from hvdtrain.launch.tool import Tool


def build(spec: LaunchSpec, tool: Tool, env: Mapping[str, str]) -> Invocation:
    """The invocation of Hydra's mpiexec for `spec`; `env` is the environment that it will inherit.

    Raises:
        LaunchError: the hosts have not enough slots, or Hydra cannot be given one of them.
    """
    variables = tuple(_variables(spec, tool))
    passed = passed_names(with_variables(env, variables), (*spec.env_patterns, "MPIR_CVAR_*", "I_MPI_*"))
    passed = passed if spec.spans_hosts else ()
    return Invocation(
        program=tool.path,
        options=(*_placing(spec), *_binding(tool), *_interface(spec), *_exports(passed)),
        command=spec.command,
        variables=variables,
        passed=passed,
        notes=tuple(_notes(spec, tool, env)),
    )


def _variables(spec: LaunchSpec, tool: Tool) -> Iterator[Variable]:
    if tool.flavour == "intel":
        yield Variable("I_MPI_PIN", "0", placement.WHY_UNBOUND)
    if why := placement.why_yield(spec):
        name, value = ("I_MPI_THREAD_YIELD", "2") if tool.flavour == "intel" else ("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
        yield Variable(name, value, why)
    yield from job_variables(spec)
    if spec.spans_hosts:  # the last one, as Hydra 5.0.2 does not pass on the last variable of its own environment
        yield Variable("HYDRA_LAUNCHER_EXTRA_ARGS", " ".join(ssh.options(spec.connect_timeout_s)), ssh.WHY)


def _placing(spec: LaunchSpec) -> Iterator[Option]:
    yield Option(("-n", str(spec.size)), "the number of ranks")
    if places := spec.places():
        listed = ",".join(f"{_host(host)}:{count}" for host, count in places)
        yield Option(("-hosts", listed), "the hosts in the order of the ranks, with how many each gets")


def _host(host: Host) -> str:
    if ":" in host.name:
        raise LaunchError(
            f"start ranks on {host.name} with Hydra",
            found="an IPv6 address, which its option -hosts cannot hold",
            remedy="give the host a name (/etc/hosts, or Host in your ssh configuration)",
        )
    return host.login


def _binding(tool: Tool) -> Iterator[Option]:
    if tool.flavour == "hydra":
        yield Option(("-bind-to", "none"), placement.WHY_UNBOUND)


def _interface(spec: LaunchSpec) -> Iterator[Option]:
    if spec.interface:
        yield Option(("-iface", spec.interface), f"the launcher's proxies call back on {spec.network}")


def _exports(passed: tuple[str, ...]) -> Iterator[Option]:
    if passed:
        why = "environment for the other hosts (the names; their values travel inside Hydra)"
        yield Option(("-genvlist", ",".join(passed)), why)


def _notes(spec: LaunchSpec, tool: Tool, env: Mapping[str, str]) -> Iterator[str]:
    yield f"launcher: {tool.text}"
    yield placement.thread_note(env)
    if spec.network:
        yield (
            f"warning: --network {spec.network} reaches Gloo, NCCL and Hydra itself; MPI's own traffic takes what UCX "
            "or libfabric choose (UCX_NET_DEVICES, FI_TCP_IFACE)"
        )
