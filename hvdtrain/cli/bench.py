"""`hvdtrain bench QUESTION`: how fast it is, measured side by side on this machine.

hvdtrain bench step
hvdtrain bench overhead --json
hvdtrain bench checkpoint --folder /scratch --plot checkpoint.svg
hvdtrain bench launch --starts 15
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hvdtrain.diagnostics.bench import QUESTIONS, ask
from hvdtrain.errors import EXIT_DONE, UsageError

# options that belong to some questions only
OF_QUESTIONS: dict[str, tuple[str, ...]] = {"folder": ("checkpoint",), "sizes": ("scaling",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    lines = "\n".join(f"  {name:<12}{asks}" for name, asks in QUESTIONS.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"questions:\n{lines}"
    parser.add_argument("question", choices=tuple(QUESTIONS), metavar="QUESTION", help="one of those below")
    parser.add_argument(
        "--starts", type=int, default=7, metavar="N", help="how often each side is started (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where checkpoints are written (checkpoint)")
    parser.add_argument(
        "--sizes", type=sizes, metavar="N,N", help="numbers of ranks, such as 1,2,4 (scaling; default: 1 to the cores)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it as well (extra: plot)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print what came out; what is measured now goes to stderr."""
    from hvdtrain.diagnostics.bench.jobs import cleaned_up
    from hvdtrain.diagnostics.bench.picture import draw
    from hvdtrain.diagnostics.bench.picture import require as require_matplotlib
    from hvdtrain.diagnostics.bench.table import table

    parameters = parameters_of(arguments)
    if arguments.plot:
        require_matplotlib(arguments.plot)  # before minutes are spent
    with cleaned_up():
        report = ask(arguments.question, say=_say, **parameters)
    if arguments.plot:
        draw(report, arguments.plot)
    print(json.dumps(report.as_json(), indent=2) if arguments.json else table(report), end="\n" * arguments.json)
    return EXIT_DONE


def parameters_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options say to the function of the question.

    Raises:
        UsageError: an option is not for this question, or its number is impossible.
    """
    if arguments.starts < 1:
        raise UsageError("measure", found=f"--starts {arguments.starts}, expected 1 or more")
    parameters: dict[str, Any] = {"starts": arguments.starts}
    for name, questions in OF_QUESTIONS.items():
        value = getattr(arguments, name)
        if value is None:
            continue
        if arguments.question not in questions:
            raise UsageError(f"bench {arguments.question} --{name}", found=f"it is for {', '.join(questions)} alone")
        parameters[name] = value
    return parameters


def sizes(text: str) -> tuple[int, ...]:
    """Read numbers of ranks, such as `1,2,4`, for an option."""
    found = tuple(sorted({int(word) for word in text.split(",")}))
    if found[0] < 1:
        raise argparse.ArgumentTypeError("at least one rank")
    return found


def _say(line: str) -> None:
    print(f"hvdtrain bench: {line}", file=sys.stderr, flush=True)
