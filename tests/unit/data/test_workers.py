"""Real worker processes: what they give, what they hold, and that none is left behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from itertools import chain

import psutil
import pytest
import torch
from positions import job

from hvdtrain.data.augmentation import Augmented
from hvdtrain.data.lifeline import WorkerStart
from hvdtrain.data.loader import loader
from hvdtrain.errors import WorkerLost


class Numbers:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Loaded(Numbers):
    """Samples that say whether the worker holds MPI, and which process it is."""

    def __getitem__(self, index):
        held = [name for name in ("horovod", "mpi4py.MPI") if name in sys.modules]
        return torch.tensor([len(held), os.getpid()])


class Importing(Numbers):
    """Samples that say whether importing MPI in a worker started it."""

    def __getitem__(self, index):
        from mpi4py import MPI

        return torch.tensor(MPI.Is_initialized())


class Broken(Numbers):
    def __getitem__(self, index):
        raise ValueError("cannot be decoded")


def jitter(sample, generator):
    return sample + torch.rand((), generator=generator)


def everything(train, epochs=2):
    used = []
    for batch in chain.from_iterable(train for _ in range(epochs)):
        used.append((batch.indices.tolist(), batch.data.tolist()))
        batch.commit()
    return used


def test_workers_give_the_same_batches_in_the_same_order():
    """Augmentation included, on any rank, some of whose shares are empty."""
    for rank in range(3):
        runs = []
        for num_workers in (0, 1, 2):
            dataset = Augmented(Numbers(25), jitter)
            train = loader(job(rank, 3), dataset, global_batch_size=4, num_workers=num_workers)
            runs.append(everything(train))
            train.close()
        assert runs[0] == runs[1] == runs[2]


def test_an_iteration_that_was_left_early_does_not_disturb_the_next():
    train = loader(job(), Numbers(40), global_batch_size=4, num_workers=2)
    batches = iter(train)
    first, second = next(batches), next(batches)
    first.commit()
    assert next(iter(train)).indices.tolist() == second.indices.tolist()
    assert list(chain.from_iterable(indices for indices, _ in everything(train, 1)))[:4] == second.indices.tolist()
    train.close()


def test_workers_of_a_loader_that_was_left_early_and_forgotten_are_ended():
    """Otherwise the rank would wait for them at its exit, for ever: they leave SIGTERM to it."""
    train = loader(job(), Numbers(400), global_batch_size=4, num_workers=2)
    batches = iter(train)
    next(batches)
    workers = set(multiprocessing.active_children())
    assert len(workers) >= 2
    del train, batches
    gc.collect()
    assert not workers & set(multiprocessing.active_children())


def test_a_process_that_left_a_loader_early_comes_to_its_end():
    program = (
        "from positions import job; from test_workers import Numbers; from hvdtrain.data.loader import loader\n"
        "def leave():\n"
        "    for batch in loader(job(), Numbers(4000), global_batch_size=4, num_workers=2): break\n"
        "leave(); print('left')\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_workers_outlive_the_thread_that_began_them():
    batches = []

    def begin():
        train = loader(job(), Numbers(40), global_batch_size=4, num_workers=1)
        batches.append(iter(train))
        next(batches[0])

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert len(list(batches[0])) == 9


def test_workers_hold_no_mpi_and_are_processes_of_their_own():
    train = loader(job(), Loaded(16), global_batch_size=4, num_workers=2)
    rows = torch.cat([batch.data for batch in train])
    train.close()
    assert rows[:, 0].sum() == 0
    assert len(set(rows[:, 1].tolist()) - {os.getpid()}) == 2


def test_mpi_is_not_started_in_a_worker_that_imports_it():
    pytest.importorskip("mpi4py.rc", reason="mpi4py is not installed")
    train = loader(job(), Importing(8), global_batch_size=4, num_workers=1)
    assert not torch.cat([batch.data for batch in train]).any()
    train.close()


def test_a_worker_that_is_killed_is_an_error_and_no_hang():
    train = loader(job(), Loaded(4000), global_batch_size=4, num_workers=1)
    batches = iter(train)
    os.kill(int(next(batches).data[0, 1]), signal.SIGKILL)
    with pytest.raises(WorkerLost, match="ended with status -9"):
        list(batches)
    train.close()


def test_workers_leave_the_signals_of_a_stop_to_their_rank():
    train = loader(job(), Loaded(400), global_batch_size=4, num_workers=2)
    batches = iter(train)
    workers = set(torch.cat([next(batches).data for _ in range(4)])[:, 1].tolist())
    for worker in workers:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            os.kill(worker, number)
    rest = torch.cat([batch.data for batch in batches])
    assert len(rest) == 384
    assert set(rest[:, 1].tolist()) == workers
    train.close()
    assert not any(psutil.pid_exists(worker) for worker in workers)


def test_a_fault_in_a_worker_reaches_the_rank_and_names_the_sample():
    train = loader(job(), Broken(8), global_batch_size=4, shuffle=False, num_workers=1)
    with pytest.raises(ValueError, match=r"cannot be decoded(?s:.*)while reading sample 0 in epoch 0"):
        list(train)
    train.close()


def test_a_worker_of_a_foreign_fork_server_is_refused():
    script = "import os; from hvdtrain.data.lifeline import WorkerStart; WorkerStart(os.getpid())(0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "started before hvdtrain's first loader" in done.stderr


def test_a_worker_whose_rank_is_gone_already_ends():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    script = (
        "import sys; sys.modules['hvdtrain.data.worker_server'] = sys\n"
        "from hvdtrain.data.lifeline import WorkerStart\n"
        f"WorkerStart({gone.pid})(0)\nprint('went on')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "went on" not in done.stdout


def test_what_a_worker_starts_with_can_be_sent_to_it():
    import pickle

    assert pickle.loads(pickle.dumps(WorkerStart(3))) == WorkerStart(3)
