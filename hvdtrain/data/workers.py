"""The worker processes of one loader: started through the fork server, ended at once, and never left behind.

They end with the loader, when nobody holds it any more, and at the latest with the process.

    workers = Workers(num_workers=2, prefetch=2)
    source = DataLoader(dataset, batch_size=None, **workers.options())
    batches = workers.start(source)            # an iterator; its processes are known from now on
    workers.end()
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from hvdtrain.data.handover import Handover, as_it_is
from hvdtrain.data.lifeline import WorkerStart, worker_context
from hvdtrain.errors import WorkerLost


class Workers:
    """See the module's synopsis.

    Args:
        num_workers: processes; 0 reads in this one.
        prefetch: batches that each holds ready.
    """

    def __init__(self, *, num_workers: int, prefetch: int) -> None:
        self.num_workers = num_workers
        self._prefetch = prefetch
        self._processes: list[BaseProcess] = []
        if num_workers:
            _end_at_exit(self._processes)
            weakref.finalize(self, _forget, self._processes).atexit = False  # then they are ended earlier: see there

    def options(self) -> dict[str, Any]:
        """What torch's DataLoader must be told, for a data set that gives what is collated already."""
        # with a generator of its own, torch does not draw from the one that the model uses
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(0), "num_workers": self.num_workers}
        options["collate_fn"] = Handover if self.num_workers else as_it_is
        if self.num_workers:
            options |= {
                "prefetch_factor": self._prefetch,
                "multiprocessing_context": worker_context(),
                "worker_init_fn": WorkerStart(os.getpid()),
            }
        return options

    def start(self, source: DataLoader[Any]) -> Iterator[Any]:
        """Begin an iteration over `source`, and remember the processes that this starts.

        Raises:
            WorkerLost: while iterating, when one of them died.
        """
        with _STARTING:
            others = set(multiprocessing.active_children())
            answers = iter(source)
            self._processes.extend(set(multiprocessing.active_children()) - others)
        return self._watched(answers)

    def _watched(self, answers: Iterator[Any]) -> Iterator[Any]:
        """The answers; what fails because a process died, as that."""
        try:
            yield from answers
        except (OSError, EOFError, RuntimeError) as error:
            wait([process.sentinel for process in self._processes], timeout=1)
            dead = [process for process in self._processes if process.exitcode]
            if not dead:
                raise
            raise WorkerLost(
                "load data in worker processes",
                found="; ".join(f"process {process.pid} ended with status {process.exitcode}" for process in dead),
                remedy="if the host ran out of memory: fewer workers, or smaller batches",
            ) from error

    def end(self) -> None:
        """Kill the processes: they hold nothing that could be lost, and may be busy for long."""
        _end(self._processes)


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()  # they are the fork server's children, so torch sees no SIGCHLD to complain about
    for process in processes:
        process.join()
    processes.clear()


_STARTING = threading.Lock()  # two threads must not take each other's processes for their own
_OPEN: list[list[BaseProcess]] = []  # of all loaders, also of those that nobody holds any more


def _end_at_exit(processes: list[BaseProcess]) -> None:
    """Have them ended before multiprocessing waits, at exit, for processes that leave SIGTERM to their rank."""
    if not _OPEN:
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _OPEN.append(processes)


def _forget(processes: list[BaseProcess]) -> None:
    _end(processes)
    _OPEN[:] = [others for others in _OPEN if others is not processes]


def _end_all() -> None:
    for processes in _OPEN:
        _end(processes)
