"""How long a step takes, over a whole run, and how that compares with what was predicted.

pace = Pace(prediction)
trainer.callbacks = (pace, *trainer.callbacks)
trainer.fit()                      # says at its end: 52.10 ms per step measured, 50.00 predicted, which is -4 % off ...
pace.ms_per_step
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

from hvdtrain.profile import Prediction
from hvdtrain.sync.contract import StepResult
from hvdtrain.train.callbacks import Callback, Training

KEPT = 1024  # last steps, of which the mean is taken: memory does not grow
WARM_UP = 3  # first steps of a process, which are no measure


class Pace(Callback):
    """Times from the end of one step to that of the next; evaluations and what lies between epochs are left out.

    Args:
        prediction: what a step was foretold to take, or None.
        clock: seconds.
    """

    def __init__(self, prediction: Prediction | None, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._prediction, self._clock = prediction, clock
        self._step_s = array("d", bytes(8 * KEPT))
        self._count = 0
        self._since: float | None = None

    def step_ended(self, trainer: Training, result: StepResult) -> None:
        """One more."""
        now = self._clock()
        if self._since is not None:
            self._step_s[self._count % KEPT] = now - self._since
            self._count += 1
        self._since = now

    def evaluated(self, trainer: Training, metrics: dict[str, float]) -> None:
        """What comes before the next step was no step."""
        self._since = None

    def epoch_ended(self, trainer: Training) -> None:
        """Likewise."""
        self._since = None

    @property
    def ms_per_step(self) -> float | None:
        """The mean of the middle half of the last steps; None where there were too few.

        Steps over a network come in several kinds, fast and slow ones, between which a median jumps.
        """
        first = WARM_UP if self._count <= KEPT else 0
        steps = sorted(self._step_s[first : min(self._count, KEPT)])
        aside = len(steps) // 4
        return 1e3 * statistics.mean(steps[aside : len(steps) - aside]) if steps else None

    def fit_ended(self, trainer: Training) -> None:
        """Log prediction against reality."""
        measured_ms = self.ms_per_step
        if self._prediction is not None and measured_ms is not None:
            trainer.run.log.info("%s", self._prediction.against(measured_ms))

    def fields(self) -> dict[str, Any]:
        """For `summary.json`."""
        if self._prediction is None:
            return {"ms_per_step": self.ms_per_step}
        one = self._prediction
        return {
            "ms_per_step": self.ms_per_step,
            "predicted_ms_per_step": one.ms_per_step,
            "predicted_ms_per_step_interval": [one.low, one.high],
        }
