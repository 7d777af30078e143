"""`hvdtrain sbatch`: print a batch script for SLURM that resumes by itself; it submits nothing.

hvdtrain sbatch -N 2 --ntasks-per-node 4 --time 1:00:00 --requeue -- hvdtrain run digits > digits.sbatch
hvdtrain sbatch -N 2 --prologue site.sh -- hvdtrain run bytelm | sbatch
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.network import check_network
from hvdtrain.launch.sbatch import BatchSpec, script
from hvdtrain.launch.selection import LAUNCHERS

WHOLE: tuple[tuple[tuple[str, ...], int | None, str], ...] = (
    (("-N", "--nodes"), 1, "hosts"),
    (("--ntasks-per-node",), 1, "ranks on each host"),
    (("--cpus-per-task",), None, "cores for each rank"),
    (("--gpus-per-node",), None, "GPUs on each host"),
    (("--lead",), 120, "seconds before the limit at which the ranks are to save and stop"),
    (("--max-requeues",), 5, "how often the job may go back into the queue"),
)
OPTIONAL = ("time", "mem", "partition", "account", "qos", "constraint", "output", "job_name")
HELP = {
    "time": "limit: 90 (minutes), 1:30:00, 2-12 (days-hours)",
    "mem": "memory of each host, such as 64G",
    "partition": "where to queue",
    "account": "who pays",
    "qos": "quality of service",
    "constraint": "features of the hosts",
    "output": "the log (default: %%x-%%j.log, name and number of the job)",
    "job_name": "what squeue shows (default: from the command)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hvdtrain sbatch`."""
    for flags, default, text in WHOLE:
        shown = f"{text} (default: {default})" if default is not None else text
        parser.add_argument(*flags, type=int, default=default, metavar="N", help=shown)
    for name in OPTIONAL:
        parser.add_argument(f"--{name.replace('_', '-')}", help=HELP[name])
    parser.add_argument("--requeue", action="store_true", help="back into the queue when stopped, preempted or failed")
    parser.add_argument("--prologue", type=Path, metavar="FILE", help="the site's own lines: module load, conda, ...")
    parser.add_argument("--directive", action="append", default=[], help="a further option: --directive=--exclusive")
    parser.add_argument("--launcher", choices=LAUNCHERS, help="as for `hvdtrain launch`")
    parser.add_argument("--network", metavar="CIDR", help="as for `hvdtrain launch`")
    parser.add_argument("--env", action="append", default=[], metavar="GLOB", help="as for `hvdtrain launch`")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what each rank runs, after `--`")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    print(script(batch_of(arguments)), end="")
    return 0


def batch_of(arguments: argparse.Namespace) -> BatchSpec:
    """What the options ask for.

    Raises:
        UsageError: with everything that is wrong with them.
    """
    given = {name: value for name in OPTIONAL if (value := getattr(arguments, name)) is not None}
    command = tuple(arguments.command)
    return BatchSpec(
        command=command,
        nodes=arguments.nodes,
        ntasks_per_node=arguments.ntasks_per_node,
        cpus_per_task=arguments.cpus_per_task,
        gpus_per_node=arguments.gpus_per_node,
        lead_s=arguments.lead,
        requeue=arguments.requeue,
        max_requeues=arguments.max_requeues,
        directives=tuple(arguments.directive),
        prologue=_text_of(arguments.prologue) if arguments.prologue else "",
        path=str(Path(sys.executable).parent),
        launch_options=tuple(_launch_options(arguments)),
        **{"job_name": name_for(command), **given},
    )


def name_for(command: tuple[str, ...]) -> str:
    """A name for the job: the recipe of a training, else the program."""
    ours = Path(command[0]).name == "hvdtrain" and command[1:2] == ("run",) and len(command) > 2
    word = command[2] if ours else command[0]
    return "".join(letter for letter in Path(word).stem if letter.isalnum() or letter in "_.+-") or "hvdtrain"


def _launch_options(arguments: argparse.Namespace) -> list[str]:
    options = ["--launcher", arguments.launcher] if arguments.launcher else []
    options += ["--network", check_network(arguments.network)] if arguments.network else []
    return options + [word for pattern in arguments.env for word in ("--env", pattern)]


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"put the lines of {path} into the script (--prologue)", found=str(error), remedy="--prologue site.sh"
        ) from None
