"""`hvdtrain doctor`: will a training run here, and if not, what is to be done?

hvdtrain doctor                 # looks, and starts nothing; exit status 1 when a check fails
hvdtrain doctor --ranks 2       # starts two ranks that add their numbers, too
hvdtrain doctor --json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from hvdtrain.errors import EXIT_DONE, EXIT_FAILED, LaunchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hvdtrain doctor`."""
    parser.add_argument("--ranks", type=int, metavar="N", help="start N ranks for a real all-reduce, too")
    parser.add_argument("--json", action="store_true", help="report as one JSON object on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Examine, and print what was found."""
    if arguments.ranks is not None and arguments.ranks < 1:
        raise LaunchError(f"--ranks {arguments.ranks}", found="a job has at least one rank", remedy="--ranks 2")
    from rich.console import Console

    from hvdtrain.diagnostics.doctor import as_json, examine, show, worst

    findings = examine(os.environ, prefix=Path(sys.prefix), ranks=arguments.ranks)
    if arguments.json:
        print(json.dumps(as_json(findings), indent=2))
    else:
        show(findings, Console())
    return EXIT_FAILED if worst(findings) == "fail" else EXIT_DONE
