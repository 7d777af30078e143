"""`hvdtrain export RUN_DIR FILE`: the model of the newest valid checkpoint, as one file that other programs can read.

hvdtrain export runs/digits digits.safetensors
hvdtrain export runs/digits digits.pt --json
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from hvdtrain.errors import EXIT_DONE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run directory, which has checkpoints/")
    parser.add_argument("file", metavar="FILE", type=Path, help="what to write: .safetensors, .pt or .pth")
    parser.add_argument("--json", action="store_true", help="report as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Export and say what was exported."""
    from hvdtrain.checkpoint.weights import export

    logging.basicConfig(format="hvdtrain: %(message)s")  # a skipped checkpoint is a warning that must be seen
    exported = export(arguments.run_dir, arguments.file)
    if arguments.json:
        print(json.dumps(exported))
    else:
        print("{file}: {tensors} tensors of step {step}, run {run_id}".format(**exported))
    return EXIT_DONE
