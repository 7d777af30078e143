"""`hvdtrain audit RUN_DIR`: prove from the ledger that each epoch used each sample exactly once, or name samples.

hvdtrain run digits --data.ledger true --run-dir runs/digits
hvdtrain audit runs/digits             # exit status 0: proved; 1: refuted
hvdtrain audit runs/digits --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hvdtrain.errors import EXIT_DONE, EXIT_FAILED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run made with --data.ledger true")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 0 when it is clean, 1 when the ledger refutes it."""
    from hvdtrain.data.audit import audit

    report = audit(arguments.run_dir)
    print(json.dumps(report.as_json(), indent=2) if arguments.json else report.text())
    return EXIT_DONE if report.clean else EXIT_FAILED
