"""`hvdtrain launch`: start a command on N ranks, on this host or on several, or show how it would be started.

hvdtrain launch -np 2 -- hvdtrain run digits
hvdtrain launch -np 4 -H gpu01:2,gpu02:2 --network 10.1.0.0/16 -- hvdtrain run digits
hvdtrain launch --hostfile hosts.txt --dry-run -- hvdtrain run digits
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvdtrain.errors import LaunchError
from hvdtrain.launch import hostfile
from hvdtrain.launch.allocation import allocation
from hvdtrain.launch.environment import withheld_names
from hvdtrain.launch.network import addresses, check_network, interface_in
from hvdtrain.launch.selection import LAUNCHERS, Choice, select
from hvdtrain.launch.spec import Host, Invocation, LaunchSpec, is_training
from hvdtrain.launch.transcript import transcript
from hvdtrain.profile import PROFILE_VARIABLE, missing_variables, read

if TYPE_CHECKING:
    from hvdtrain.launch.aftermath import Policy

LOST_AFTER_S = 30.0
LEAST_LOST_S = 3.0  # beats come once a second at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hvdtrain launch`."""
    parser.add_argument(
        "-np", type=int, metavar="N", help="ranks (default: all slots of the hosts, or this one's GPUs or cores)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", dest="hosts", metavar="HOSTS", help="hosts with their slots: gpu01:2,gpu02:2")
    where.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="a host file in any dialect (see `hvdtrain hosts`)"
    )
    parser.add_argument(
        "--launcher", choices=LAUNCHERS, default="auto", help="what starts the ranks (default: %(default)s)"
    )
    parser.add_argument("--network", metavar="CIDR", help="the network for the ranks' traffic, such as 10.1.0.0/16")
    parser.add_argument(
        "--env", action="append", default=[], metavar="GLOB", help="further variables that other hosts get (repeatable)"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="what `hvdtrain tune` found; what is set wins over it"
    )
    parser.add_argument("--no-preflight", action="store_true", help="do not ask the hosts before ranks start on them")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="K", help="start a failed job again, K times")
    parser.add_argument(
        "--min-np", type=int, metavar="M", help="go on with M ranks or more when hosts are lost (default: N)"
    )
    parser.add_argument(
        "--lost-after",
        type=float,
        metavar="S",
        help=f"a host silent for so long is lost (default: {LOST_AFTER_S:.0f})",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the command and its reasons, and start nothing")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what each rank runs, after `--`")


def run(arguments: argparse.Namespace) -> int:
    """Start the job, or print how it would be started; returns the job's own exit status."""
    choice = select(arguments.launcher, os.environ, dry_run=arguments.dry_run)
    spec, notes = specification(arguments, os.environ)
    if arguments.profile:
        spec = tuned(spec, arguments.profile, os.environ)
        if spec.binding and choice.tool.flavour != "openmpi":
            print(
                f"hvdtrain: warning: launch.binding {spec.binding} is ignored: not by Open MPI's mpirun",
                file=sys.stderr,
            )
    for name in withheld_names(os.environ, arguments.env):
        print(f"hvdtrain: warning: --env does not pass {name} on: it looks like a secret", file=sys.stderr)
    invocation = build(choice, spec, os.environ, notes)
    if arguments.dry_run:
        print(transcript(invocation), end="")
        return 0
    return start(spec, choice, arguments)


def tuned(spec: LaunchSpec, file: Path, env: Mapping[str, str]) -> LaunchSpec:
    """The job with what a profile says of launching; `hvdtrain run` is given the profile, too, unless it has one.

    Raises:
        ConfigError: the file is no profile.
    """
    profile = read(file)
    told = any(word.partition("=")[0] == "--profile" for word in spec.command)
    handed_on = () if told or not is_training(spec.command) else ("--profile", str(file.absolute()))
    return replace(
        spec,
        command=(*spec.command, *handed_on),
        binding=profile.launch.binding,
        yielding=profile.launch.yielding,
        tuned=(*missing_variables(profile, env).items(), (PROFILE_VARIABLE, str(file.absolute()))),
    )


def start(spec: LaunchSpec, choice: Choice, arguments: argparse.Namespace) -> int:
    """Ask the hosts, then run the job under supervision; what only a real start needs is imported here."""
    from hvdtrain.launch.supervisor import supervise

    policy = policy_of(arguments)
    if arguments.lost_after is not None and not uses_ssh(spec, choice, os.environ):
        print("hvdtrain: warning: --lost-after is ignored: no host is reached over ssh here", file=sys.stderr)
    if spec.spans_hosts and not arguments.no_preflight:
        preflight(spec, choice)
    return supervise(
        spec,
        policy,
        build=choice.build,
        env=os.environ,
        watched=uses_ssh(spec, choice, os.environ),
        first_failure=lambda: recorded_failure(spec.command),
    )


def preflight(spec: LaunchSpec, choice: Choice) -> None:
    """Ask the hosts whether they are alike and ready, and show what is not.

    Raises:
        LaunchError: ranks cannot work together on these hosts.
    """
    from hvdtrain.diagnostics.preflight import ask, compare, table

    over_ssh, training = uses_ssh(spec, choice, os.environ), run_directory(spec.command) is not None
    answers, silent = ask(spec, choice.build, os.environ, over_ssh=over_ssh)
    differences = compare(answers, silent, training=training, over_ssh=over_ssh)
    if warnings := [one for one in differences if one.status == "warn"]:
        print(f"hvdtrain: warning: hosts differ\n{table(warnings)}", file=sys.stderr)
    if faults := [one for one in differences if one.status == "fail"]:
        raise LaunchError(
            f"start {spec.size} ranks on {', '.join(host.name for host, _ in spec.places())}",
            found=table(faults).replace("\n", "\n         "),
            remedy="make the hosts alike, leave one out (-H), or start all the same with --no-preflight",
        )


def uses_ssh(spec: LaunchSpec, choice: Choice, env: Mapping[str, str]) -> bool:
    """Whether the hosts are reached over ssh; in a SLURM job mpirun, too, starts its daemons through SLURM."""
    return spec.spans_hosts and choice.tool.flavour != "slurm" and "SLURM_JOB_ID" not in env


def policy_of(arguments: argparse.Namespace) -> Policy:
    """What the options allow the supervisor.

    Raises:
        LaunchError: they contradict themselves.
    """
    from hvdtrain.launch.aftermath import Policy

    lost_after_s = LOST_AFTER_S if arguments.lost_after is None else arguments.lost_after
    asked = {
        f"--max-restarts {arguments.max_restarts}, expected 0 or more": arguments.max_restarts >= 0,
        f"--min-np {arguments.min_np}, expected 1 or more": arguments.min_np is None or arguments.min_np >= 1,
        f"--lost-after {lost_after_s}, expected {LEAST_LOST_S:.0f} or more": lost_after_s >= LEAST_LOST_S,
    }
    if faults := [text for text, holds in asked.items() if not holds]:
        raise LaunchError("supervise the job", found="; ".join(faults), remedy="hvdtrain launch --help")
    if arguments.min_np is not None and arguments.max_restarts == 0:
        print("hvdtrain: warning: --min-np is ignored without --max-restarts", file=sys.stderr)
    return Policy(max_restarts=arguments.max_restarts, min_np=arguments.min_np, lost_after_s=lost_after_s)


def recorded_failure(command: tuple[str, ...]) -> tuple[str, str] | None:
    """The host and the text of the first failure that a rank of this training recorded."""
    from hvdtrain import failure as failures

    directory = run_directory(command)
    failure = failures.read(directory) if directory else None
    return (failure.host, str(failure)) if failure else None


def run_directory(command: tuple[str, ...]) -> Path | None:
    """The run directory of a training; None for any other command."""
    if Path(command[0]).name != "hvdtrain" or command[1:2] != ("run",) or len(command) < 3:
        return None
    for word, following in zip(command, (*command[1:], ""), strict=True):
        if word == "--run-dir" and following:
            return Path(following)
        if word.startswith("--run-dir="):
            return Path(word.partition("=")[2])
    return Path("runs") / Path(command[2]).stem


def build(choice: Choice, spec: LaunchSpec, env: Mapping[str, str], notes: tuple[str, ...]) -> Invocation:
    """The invocation of the chosen launcher, with what was decided on the way to it noted first."""
    invocation = choice.build(spec, env)
    return replace(invocation, notes=(f"chosen: {choice.why}", *notes, *invocation.notes))


def specification(arguments: argparse.Namespace, env: Mapping[str, str]) -> tuple[LaunchSpec, tuple[str, ...]]:
    """What the options and the batch system ask for, and where it came from.

    Raises:
        LaunchError: they ask for something impossible.
        HostFileError: the hosts cannot be understood.
    """
    hosts, cores, origin = find_hosts(arguments, env)
    cores = cores or len(os.sched_getaffinity(0))
    network = check_network(arguments.network) if arguments.network else None
    spec = LaunchSpec(
        command=located(tuple(arguments.command), env) if hosts else tuple(arguments.command),
        size=arguments.np if arguments.np is not None else sum(host.slots for host in hosts) or gpus_here(env) or cores,
        cores_per_host=cores,
        hosts=hosts,
        network=network,
        interface=interface_in(network, addresses()) if network else None,
        env_patterns=tuple(arguments.env),
        as_root=os.geteuid() == 0,
    )
    assumed = f"assumed: every host has {cores} core{'s' if cores > 1 else ''} for the job"
    return spec, (f"hosts: {origin}", assumed) if hosts else (f"hosts: {origin}",)


def gpus_here(env: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """How many NVIDIA GPUs ranks on this host can see."""
    if (visible := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([word for word in visible.split(",") if word.strip() not in {"", "-1"}])
    return len([path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit()])


def find_hosts(arguments: argparse.Namespace, env: Mapping[str, str]) -> tuple[tuple[Host, ...], int | None, str]:
    """The hosts, the cores of each where the batch system says so, and where they were named; no hosts: this one.

    Raises:
        HostFileError: they cannot be understood.
    """
    given = allocation(env)
    cores = given.cores_per_host if given else None
    if arguments.hosts is not None:
        return hostfile.parse(arguments.hosts, "-H"), cores, f"-H {arguments.hosts}"
    if arguments.hostfile is not None:
        return hostfile.read(arguments.hostfile), cores, f"--hostfile {arguments.hostfile}"
    if given is not None:
        return given.hosts, cores, f"the {given.system} job, {given.source}"
    return (), None, "this one (no -H, no --hostfile, no job of SLURM, PBS or LSF)"


def located(command: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, ...]:
    """The command with its program's whole path, as other hosts may search elsewhere."""
    path = shutil.which(command[0], path=env.get("PATH", ""))
    return (str(Path(path).absolute()), *command[1:]) if path else command
