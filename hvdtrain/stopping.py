"""Requests to stop: signals and a time limit set a flag; the step signal makes it everyone's decision.

A handler only sets a flag, because a checkpoint can be saved only where all ranks are at the same step. A second signal
within the grace time ends the process at once. Handlers that were there before are called too, and are put back.

    with StopRequests(config.stop, env=os.environ) as stop:
        trainer = Trainer(..., stop_asked=stop.asked)
        trainer.fit()
    stop.reason                                            # "SIGUSR1", "time limit", or None
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any

from hvdtrain.config import StopConfig
from hvdtrain.errors import EXIT_FAILED, ConfigError

_LOG = logging.getLogger(__name__)


def signal_number(name: str) -> signal.Signals:
    """The signal of that name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return signal.Signals[name]
    except KeyError:
        known = ", ".join(item.name for item in signal.Signals if not item.name.startswith("SIGRT"))
        raise ConfigError("stop on a signal (stop.signals)", found=name, remedy=f"one of {known}") from None


class StopRequests:
    """Whether this rank was asked to stop, and by what.

    Args:
        config: which signals, which limit.
        env: for the SLURM job, whose limit counts when none is configured.
        clock: seconds since 1970.
        started: the `clock` when the job was started, from which the limit counts.
        save_s: what a save has cost, asked anew each time; twice that and `stop.margin_s` are left before the limit.
        leave: ends the process at once.
    """

    def __init__(
        self,
        config: StopConfig,
        *,
        env: Mapping[str, str],
        clock: Callable[[], float] = time.time,
        started: float | None = None,
        save_s: Callable[[], float] = lambda: 0.0,
        leave: Callable[[int], Any] = os._exit,
    ) -> None:
        self._signals = [signal_number(name) for name in config.signals]
        self._grace_s, self._clock, self._save_s, self._leave = config.grace_s, clock, save_s, leave
        self._margin_s = config.margin_s
        self._deadline = _deadline(config, env, clock() if started is None else started)
        self._before: dict[signal.Signals, Any] = {}
        self._asked_at = 0.0
        self._handled, self._heard, self._counted = 0, 0, 0  # signals by the handler, by `heard`, and by either
        self.reason: str | None = None

    def __enter__(self) -> StopRequests:
        for number in self._signals:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handled += 1
        self._count(number)
        earlier = self._before.get(signal.Signals(number))
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)

    def heard(self, number: int) -> None:
        """A signal came, which another thread was told by `signal.set_wakeup_fd`; may be before or after the handler.

        Python's handlers wait until the main thread is back from Horovod; this does not.
        """
        if number in self._signals:
            self._heard += 1
            self._count(number)
            _LOG.info("%s: this rank asks all ranks to stop after their step", signal.Signals(number).name)

    def _count(self, number: int) -> None:
        """Each signal once, although both the handler and `heard` see it."""
        arrived = max(self._handled, self._heard)
        if arrived == self._counted:
            return
        self._counted, now = arrived, self._clock()
        if self.reason is not None and now - self._asked_at <= self._grace_s:
            self._leave(EXIT_FAILED)
        self.reason, self._asked_at = signal.Signals(number).name, now

    def asked(self) -> bool:
        """Whether to stop now; cheap enough for each step."""
        if self.reason is None and self._deadline is not None:
            needed_s = self._margin_s + 2 * self._save_s()
            if self._clock() + needed_s >= self._deadline:
                self.reason = "time limit"
        return self.reason is not None


def _deadline(config: StopConfig, env: Mapping[str, str], started: float) -> float | None:
    if config.time_limit_s is not None:
        return started + config.time_limit_s
    end = env.get("SLURM_JOB_END_TIME", "")
    if end.isascii() and end.isdigit():
        return float(end)
    return _end_by_scontrol(env) if "SLURM_JOB_ID" in env else None


def _end_by_scontrol(env: Mapping[str, str]) -> float | None:
    """The end of this SLURM job, in seconds since 1970; None where scontrol does not know one.

    For SLURM before 23.02, which does not set `SLURM_JOB_END_TIME`.
    """
    command = ["scontrol", "show", "job", env["SLURM_JOB_ID"], "--oneliner"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=10, env=dict(env), check=True).stdout
        found = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b", shown)
        return time.mktime(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) if found else None
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("the time limit of this SLURM job is not known: %s", error)
        return None
