"""A short training of a recipe, for its time per step: what `tune` and `predict` measure with.

It is the very command of the user, cut to a few steps, without evaluations and checkpoints on the way, in a run
directory that goes away again.

    trial = Trial(recipe=("digits", "--optimizer.lr", "0.1"), size=2, steps=40)
    timed(trial, env=os.environ, folder=Path("."))          # Timed(ms_per_step=7.1, gradient_bytes=..., samples=64)
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from hvdtrain.diagnostics.bench import jobs
from hvdtrain.errors import HvdtrainError

HVDTRAIN = (sys.executable, "-m", "hvdtrain")
QUICK = {  # what would take time or place and is no step
    "train.eval_every_epochs": "0",
    "train.log_every": "1000000",
    "train.progress": "false",
    "train.tensorboard": "false",
    "checkpoint.every_steps": "1000000000",
    "data.ledger": "false",
}
LEAST_STEPS = 6


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to be run.

    Attributes:
        recipe: its name or file, and settings, as after `hvdtrain run`.
        size: ranks.
        steps: in all; the first few are no measure.
        where: options of `hvdtrain launch`: hosts, network, a profile.
        within: words before the command of each rank, such as ``taskset -c 0``.
    """

    recipe: tuple[str, ...]
    size: int
    steps: int
    where: tuple[str, ...] = ()
    within: tuple[str, ...] = ()

    def command(self, run_dir: Path) -> tuple[str, ...]:
        """The whole command line."""
        quick = [word for name, value in QUICK.items() for word in (f"--{name}", value)]
        run = [*HVDTRAIN, "run", *self.recipe, *quick, "--train.steps", str(self.steps), "--run-dir", str(run_dir)]
        launch = [*HVDTRAIN, "launch", "-np", str(self.size), "--no-preflight", *self.where, "--"]
        return (*launch, *self.within, *run)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What it came to.

    Attributes:
        ms_per_step: median.
        gradient_bytes: exchanged in a step.
        samples: of a step, over all ranks.
        bucket_bytes: of one group of gradients.
        strategy: of the exchange.
    """

    ms_per_step: float
    gradient_bytes: int
    samples: int
    bucket_bytes: int
    strategy: str


def timed(trial: Trial, *, env: Mapping[str, str], folder: Path | None = None, timeout_s: float = 600.0) -> Timed:
    """Run it once.

    Args:
        trial: what.
        env: what it inherits.
        folder: where its run directory is made, which all hosts must see; the system's place for such if None.
        timeout_s: after which it is ended.

    Raises:
        HvdtrainError: it failed, or made too few steps to time any.
    """
    with tempfile.TemporaryDirectory(prefix="hvdtrain-trial-", dir=folder) as place:
        run_dir = Path(place).absolute() / "run"
        argv = trial.command(run_dir)
        status, output = jobs.execute(argv, env=jobs.as_root(env), timeout_s=timeout_s)
        asked = f"time {trial.steps} steps of {' '.join(trial.recipe)} on {trial.size} ranks"
        if status != 0:
            raise HvdtrainError(asked, found=f"{jobs.status_text(status)}:\n{output[-2000:]}")
        summary = json.loads((run_dir / "summary.json").read_text())
        config = yaml.safe_load((run_dir / "config.yaml").read_text())
    if summary["ms_per_step"] is None:
        raise HvdtrainError(asked, found="too few steps were made to time any", remedy="--steps 30")
    return Timed(
        ms_per_step=summary["ms_per_step"],
        gradient_bytes=summary["gradient_bytes"],
        samples=config["train"]["global_batch_size"],
        bucket_bytes=config["sync"]["bucket_bytes"],
        strategy=config["sync"]["strategy"],
    )
