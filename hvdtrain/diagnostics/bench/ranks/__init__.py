"""What runs inside the ranks of a benchmark: one program per question, each started as `python -m`.

python -m hvdtrain.diagnostics.bench.ranks.step TASK OUT          (TASK: JSON; OUT: where rank-N.json goes)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdtrain.topology import detect


def serve(measure: Callable[[dict[str, Any]], Any]) -> None:
    """Read the task of this rank, do it, and write what it found; the whole `main` of a rank program."""
    task, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    found = measure(task)
    promise = detect(os.environ)
    rank = promise.rank if promise else 0
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
