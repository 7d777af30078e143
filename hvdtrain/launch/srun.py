"""The command for SLURM's srun inside an allocation: pure, from a specification to an argument list with reasons.

Ranks find each other through PMI, whose kind must be one that the MPI speaks: without it srun starts N processes that
are each rank 0 of 1.

    invocation = build(spec, Tool(flavour="slurm", version=(22, 5, 8), path="srun"), os.environ, pmi="pmix")
    invocation.argv      # ("srun", "--mpi=pmix", "--ntasks=4", "--nodes=2", ..., "hvdtrain", "run", "digits")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hvdtrain.launch import placement
from hvdtrain.launch.environment import SESSION, passed_names
from hvdtrain.launch.mpirun import job_variables, with_variables
from hvdtrain.launch.spec import Invocation, LaunchSpec, Option, Variable
from hvdtrain.launch.tool import Tool

# The variables that the other launchers set by options; srun hands them to the ranks as they are.
YIELD = {"pmix": ("OMPI_MCA_mpi_yield_when_idle", "1"), "pmi2": ("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")}
# SLURM 22.05 ends with 0 when a step could not be launched, for one because the last attempt's step is not quite gone.
FALSE_SUCCESS = ("launch failed: ", "aborted before step completely launched")
PASSED = ("OMPI_MCA_*", "PMIX_MCA_*", "MPIR_CVAR_*", "I_MPI_*", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def build(spec: LaunchSpec, tool: Tool, env: Mapping[str, str], pmi: str = "pmix") -> Invocation:
    """The invocation of srun for `spec`; `pmi` is the kind that the MPI of the ranks speaks, ``pmix`` or ``pmi2``.

    Raises:
        LaunchError: the hosts have not enough slots.
    """
    variables = tuple(_variables(spec, env, pmi))
    wanted = (*SESSION, *PASSED, *spec.env_patterns)
    passed = passed_names(with_variables(env, variables), wanted)
    return Invocation(
        program=tool.path,
        options=(*_placing(spec, pmi), *_conduct(), _exports(passed)),
        command=spec.command,
        variables=variables,
        passed=passed,
        notes=(f"launcher: {tool.text}", placement.thread_note(env)),
        false_success=FALSE_SUCCESS,
    )


def _variables(spec: LaunchSpec, env: Mapping[str, str], pmi: str) -> Iterator[Variable]:
    if why := placement.why_yield(spec):
        yield Variable(*YIELD[pmi], why)
    if pmi == "pmix":
        if spec.network:
            why = "where MPI uses TCP, on this network (it does not force TCP)"
            yield Variable("OMPI_MCA_btl_tcp_if_include", spec.network, why)
        if "PMIX_MCA_psec" not in env:
            why = "ranks prove who they are by their user, as Open MPI from PyPI has no munge and would complain of it"
            yield Variable("PMIX_MCA_psec", "^munge", why)
    yield from job_variables(spec)


def _placing(spec: LaunchSpec, pmi: str) -> Iterator[Option]:
    yield Option((f"--mpi={pmi}",), "how the ranks' MPI finds the others; without it each is rank 0 of 1")
    yield Option((f"--ntasks={spec.size}",), "the number of ranks")
    places = spec.places()
    if not places:
        return
    yield Option((f"--nodes={len(places)}",), "no host without ranks takes part")
    counts = {count for _, count in places}
    if len(counts) == 1:
        yield Option((f"--nodelist={','.join(host.name for host, _ in places)}",), "the hosts")
        yield Option((f"--ntasks-per-node={counts.pop()}",), "how many each gets")
        yield Option(("--distribution=block",), "one host is filled after the other: neighbours in the ring share it")
    else:
        listed = ",".join(host.name for host, count in places for _ in range(count))
        yield Option((f"--nodelist={listed}",), "the host of each rank, in the order of the ranks")
        yield Option(("--distribution=arbitrary",), "which is to be kept, as the hosts get different numbers")


def _conduct() -> Iterator[Option]:
    yield Option(("--cpu-bind=none",), placement.WHY_UNBOUND)
    why = "ranks that stop with a checkpoint (75) end one after the other; when one fails, hvdtrain ends the others"
    yield Option(("--kill-on-bad-exit=0",), why)


def _exports(passed: tuple[str, ...]) -> Option:
    why = "environment for the ranks (the names; their values travel inside SLURM)"
    return Option((f"--export={','.join(passed)}",), why)
