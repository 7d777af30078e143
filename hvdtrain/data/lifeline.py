"""Worker processes that end with their rank, however it ends, and leave the signals that stop a job to it.

A SIGKILLed rank cannot tell its workers anything, so the kernel does (`PR_SET_PDEATHSIG`, see prctl(2)): the rank's
death kills the fork server, whose death kills the workers that it forked. Orphans would hold the launcher's pipes, and
mpirun waits for those.

    DataLoader(..., multiprocessing_context=worker_context(), worker_init_fn=WorkerStart(os.getpid()))

Linux sends the signal when the *thread* that started a process ends, so the fork server is started from a thread of its
own, which lives as long as the rank.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from types import FrameType

_PR_SET_PDEATHSIG = 1
_SERVER = "hvdtrain.data.worker_server"
STOP_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")


def keep_mpi_off() -> None:
    """Let mpi4py, if it is ever imported here, neither start nor end MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        return
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False


def worker_context() -> ForkServerContext:
    """The multiprocessing context of workers: a fork server that holds no MPI and dies with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_SERVER])
    _ensure_server()
    return context


_KEEPERS: list[threading.Thread] = []  # at most one
_KEEPERS_LOCK = threading.Lock()


def _ensure_server() -> None:
    """Start the fork server, once, from a thread that stays for as long as the process lives."""
    running = threading.Event()

    def keep() -> None:
        try:
            forkserver.ensure_running()
        finally:
            running.set()
        threading.Event().wait()

    with _KEEPERS_LOCK:
        if not _KEEPERS:
            _KEEPERS.append(threading.Thread(target=keep, name="hvdtrain-fork-server", daemon=True))
            _KEEPERS[0].start()
            running.wait()


@dataclass(frozen=True)
class WorkerStart:
    """What a worker does first; a `worker_init_fn` for torch's DataLoader.

    Attributes:
        rank_pid: the process whose worker it is.
        signals: those that mean the rank, and that launchers also send to its workers.
    """

    rank_pid: int
    signals: tuple[signal.Signals, ...] = STOP_SIGNALS

    def __call__(self, worker_id: int) -> None:
        """Tie the worker to its rank.

        Raises:
            RuntimeError: the fork server was started by something else, so the rank's death would not reach it.
        """
        die_with_parent()
        if os.getppid() != self.rank_pid and _SERVER not in sys.modules:
            raise RuntimeError(
                "the fork server of this process was started before hvdtrain's first loader, so its workers could "
                "outlive their rank; make the loader first, or use another start method for the other workers"
            )
        if not _alive(self.rank_pid):
            os._exit(1)  # it died before the kernel was told to watch it
        for number in self.signals:
            signal.signal(number, _leave_to_rank)
            signal.siginterrupt(number, False)  # reads in C libraries go on


def _leave_to_rank(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN, programs that a data set starts do not inherit this."""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
