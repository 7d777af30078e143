"""The command line: a table of verbs, each in a module of its own that is imported only when it was typed.

A verb module has `add_arguments(parser)` and `run(arguments) -> int`, the
exit status. A module whose options come from somewhere else than argparse (`run`, whose options are the configuration)
has `main(argv) -> int` instead.

    hvdtrain --help
    hvdtrain launch -np 2 -- hvdtrain run digits
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from hvdtrain import __version__
from hvdtrain.errors import EXIT_FAILED, EXIT_USAGE, HvdtrainError, LaunchError, UsageError
from hvdtrain.topology import ROOT, Promise, detect

# verb -> (module, one line of help); the lines stand here so that `--help` imports no verb at all
VERBS: dict[str, tuple[str, str]] = {
    "run": ("hvdtrain.cli.run", "train a recipe or FILE.py inside a rank"),
    "launch": ("hvdtrain.cli.launch", "start a command on N ranks, here or on several hosts"),
    "sbatch": ("hvdtrain.cli.sbatch", "print a batch script for SLURM that resumes by itself"),
    "hosts": ("hvdtrain.cli.hosts", "read a host file in any dialect and write it in another"),
    "audit": ("hvdtrain.cli.audit", "prove from a run's ledger that each epoch used each sample once"),
    "install-horovod": ("hvdtrain.cli.install", "build Horovod for the torch and MPI that are there, and install it"),
    "bench": ("hvdtrain.cli.bench", "measure how fast it is on this machine, side by side with what else there is"),
    "tune": ("hvdtrain.cli.tune", "find the fastest settings for a recipe, its hosts and ranks, as a profile"),
    "predict": ("hvdtrain.cli.predict", "foretell the time of a step on more ranks, or over another network"),
    "doctor": ("hvdtrain.cli.doctor", "examine this host: will a training run here, and what is to be done?"),
    "export": ("hvdtrain.cli.export", "write the model of a run's newest valid checkpoint to one file"),
}


def usage() -> str:
    """The text of `hvdtrain --help`."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, (_, summary) in VERBS.items()]
    head, tail = "usage: hvdtrain VERB [options]", "`hvdtrain VERB --help` shows the options."
    return "\n".join([head, "", *lines, "", tail, ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status: 0 done, 2 impossible request, 75 stopped on request, 1 anything else."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except HvdtrainError as error:
        if not _root_says_it(error, detect(os.environ)):
            print(f"hvdtrain: {error}", file=sys.stderr)
        return error.exit_status


def _root_says_it(error: HvdtrainError, promise: Promise | None) -> bool:
    """Whether root prints the same message; it is given a second for that, because launchers end all ranks with one."""
    alike = error.agreed or (isinstance(error, UsageError) and not isinstance(error, LaunchError))
    if alike and promise is not None and promise.rank != ROOT:
        time.sleep(1.0)
        return True
    return False


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in {"-h", "--help"}:
        print(usage(), end="")
        return 0 if words else EXIT_USAGE
    if words[0] == "--version":
        print(__version__)
        return 0
    verb, rest = words[0], words[1:]
    if verb not in VERBS:
        near = get_close_matches(verb, VERBS, n=1)
        raise UsageError(
            f"the verb {verb!r}",
            found=f"hvdtrain knows {', '.join(VERBS)}",
            remedy=f"hvdtrain {near[0]}" if near else "hvdtrain --help",
        )
    module = import_module(VERBS[verb][0])
    if hasattr(module, "main"):
        return int(module.main(rest))
    parser = argparse.ArgumentParser(prog=f"hvdtrain {verb}", description=VERBS[verb][1], allow_abbrev=False)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(rest)))
