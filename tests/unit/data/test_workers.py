"""Real worker processes: what they give, what they hold, and that none is left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import chain

import psutil
import pytest
import torch
from positions import job

from hvdtrain.data.augmentation import Augmented
from hvdtrain.data.lifeline import WorkerStart
from hvdtrain.data.loader import loader


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


RANK = """
import sys, time
from types import SimpleNamespace

from hvdtrain.data.loader import loader
from hvdtrain.topology import SOLO

class Slow:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index >= 8:
            time.sleep(0.5)  # let the thread that sends the batches before this one finish
            {then}
        return index

def main():
    train = loader(SimpleNamespace(topology=SOLO, seed=0), Slow(), global_batch_size=4, shuffle=False, num_workers=2)
    batches = iter(train)
    next(batches), next(batches)
    print("ready", flush=True)
    {end}

if __name__ == "__main__":
    main()
"""
BUSY = {
    "waiting for requests": "pass",
    "sleeping": "time.sleep(600)",
    "holding the interpreter": "sum(range(10**13))",
}


@pytest.fixture
def start_rank(tmp_path):
    started = []

    def start(then, end):
        rank, children = _start(tmp_path, then, end)
        started.extend([psutil.Process(rank.pid), *children])
        return rank, children

    yield start
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _start(tmp_path, then, end):
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(then=then, end=end))
    rank = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert rank.stdout.readline() == "ready\n", rank.communicate()[1]
    time.sleep(1)  # let the workers reach what they are to be killed in
    return rank, psutil.Process(rank.pid).children(recursive=True)


@pytest.mark.parametrize("busy", BUSY)
def test_workers_and_their_server_die_with_a_killed_rank(start_rank, busy):
    rank, children = start_rank(BUSY[busy], "time.sleep(600)")
    assert len(children) >= 3  # two workers and the fork server; the resource tracker of multiprocessing as well
    rank.kill()
    rank.communicate(timeout=30)  # returns when nobody holds its pipes any more
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


@pytest.mark.parametrize("end", ["return", "raise SystemExit(3)", "raise ValueError('the model broke')"])
@pytest.mark.parametrize("busy", ["waiting for requests", "sleeping"])
def test_a_rank_that_ends_in_order_is_not_held_up_by_its_workers(start_rank, busy, end):
    rank, children = start_rank(BUSY[busy], end)
    _, complaints = rank.communicate(timeout=60)
    assert rank.returncode == {"return": 0, "raise SystemExit(3)": 3}.get(end, 1)
    assert "killed by signal" not in complaints
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
