"""The watchdog of a job: it sees what Horovod waits for in vain, says who waits for whom, and ends the job.

Each rank has a small mapped record (`hvdtrain.phases`) and a thread that reads those of the others, so the report is
there also when a rank is stopped, stuck in C code, or dead; whoever is alive writes it.

    with watching(run, run_dir, config.watchdog) as watchdog:        # Collective: files in run_dir/watch, run_dir/logs
        watchdog.listen(stop.heard)                                  # stop signals, also while Horovod waits
        trainer.fit()
    # after an exception it watches on, until the rank has ended

`peers` knows the other processes of this host, `heartbeat` hears from other hosts, `stall` judges, `stacks` writes
where a rank is, `guard` is the thread.
"""

from __future__ import annotations

import faulthandler
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdtrain.config import WatchdogConfig
from hvdtrain.failure import set_aside
from hvdtrain.runtime import Run
from hvdtrain.watchdog.guard import Watchdog
from hvdtrain.watchdog.heartbeat import start
from hvdtrain.watchdog.reports import log_file, record_file

__all__ = ["Watchdog", "watch", "watching"]

_CURRENT: list[Watchdog] = []  # one process is one rank and has one watchdog
_FATAL_LOGS: list[int] = []  # the descriptor that faulthandler writes to
_LOG = logging.getLogger("hvdtrain")


def watch(run: Run, run_dir: Path, config: WatchdogConfig | None = None) -> Watchdog:
    """Collective: from now on failures are recorded in `run_dir`, and this rank is watched until `run` ends.

    The failure of an earlier attempt is set aside.

    Raises:
        OSError: on root, the directory cannot be written; the others raise `RootFailed`.
    """
    settings = config or WatchdogConfig()
    run_dir = run_dir.absolute()
    records, logs = run_dir / "watch", run_dir / "logs"
    end_watch()
    run.collectives.on_root(lambda: _prepare(run_dir, records, logs))
    run.phases.keep_in(record_file(records, run.topology.rank))
    run.failures.directory = run_dir
    _say_fatal_signals(log_file(logs, run.topology.rank))
    run.collectives.barrier()  # every record is there
    watchdog = Watchdog(
        run.failures,
        run.phases,
        records=records,
        stacks=logs,
        size=run.topology.size,
        stall_s=settings.stall_s,
        start_s=settings.start_s,
        usual_steps=settings.usual_steps,
        abort=run.abort,
        heartbeat=start(run.hosts, rank=run.topology.rank, controller=run.controller),
    )
    _CURRENT.append(watchdog)
    run.closing.callback(end_watch)
    return watchdog


@contextmanager
def watching(run: Run, run_dir: Path, config: WatchdogConfig | None = None) -> Iterator[Watchdog]:
    """Collective: `watch`, and raise no alarm for what comes after the context; an exception leaves it watching."""
    watchdog = watch(run, run_dir, config)
    yield watchdog
    watchdog.rest()


def end_watch() -> None:
    """This rank leaves in order, or is going to be watched anew."""
    if _CURRENT:
        _CURRENT.pop().close()


def _prepare(run_dir: Path, records: Path, logs: Path) -> None:
    for directory in (run_dir, records, logs):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    set_aside(run_dir)
    for path in records.glob("rank-*"):  # of an earlier attempt, for whose ranks nobody should wait
        path.unlink()


def _say_fatal_signals(log: Path) -> None:
    """Let faulthandler write the stacks of a process that dies of a fatal signal to the end of its log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.enable(file=descriptor, all_threads=True)
    while _FATAL_LOGS:
        os.close(_FATAL_LOGS.pop())
    _FATAL_LOGS.append(descriptor)
