"""From the start of a job to the end of its first step: what a rank of `bench launch` does.

It gives the time, in seconds since 1970, at which the first step was done.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from hvdtrain.diagnostics.bench.models import build
from hvdtrain.diagnostics.bench.ranks import serve
from hvdtrain.diagnostics.bench.ranks.trainer import trainer_over


def measure(task: dict[str, Any]) -> float:
    """Collective: make one step."""
    import hvdtrain

    with hvdtrain.init() as run, tempfile.TemporaryDirectory(prefix="hvdtrain-bench-") as folder:
        shared = Path(run.collectives.broadcast_json(folder))
        with trainer_over(run, build(task["model"]), steps=1, folder=shared) as (trainer, _):
            trainer.fit()
            done = time.time()
        run.collectives.barrier()
    return done


if __name__ == "__main__":
    serve(measure)
