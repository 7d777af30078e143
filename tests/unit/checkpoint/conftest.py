"""Small checkpoints, and ranks that are threads: collectives that meet in memory, so that no MPI is needed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hvdtrain.checkpoint.format import Snapshot
from hvdtrain.collectives import Collectives
from hvdtrain.statetree import flatten
from hvdtrain.topology import Topology


def tiny_state(step):
    """A state with one tensor in each of two entries, and one entry without any."""
    return {
        "model": {"weight": torch.tensor([step, 1.5]), "tied": torch.tensor(True)},
        "optimizer": {"state": {0: {"exp_avg": torch.tensor([0.1 * step], dtype=torch.bfloat16)}}, "groups": [(0.9,)]},
        "sampler": {"epoch": step, "consumed": None},
    }


@pytest.fixture(scope="session")
def state_at():
    return tiny_state


@pytest.fixture(scope="session")
def snapshot_at():
    def snapshot(step, **fields):
        entries = {name: flatten(tree) for name, tree in tiny_state(step).items()}
        return Snapshot(**{"step": step, "run_id": "run", "size": 1, "entries": entries, **fields})

    return snapshot


class MeetingTransport:
    """One of several ranks in one process: each operation waits for all of them and reads what they brought."""

    def __init__(self, rank, size, barrier, table):
        fields = {"local_rank": rank, "local_size": size, "cross_rank": 0, "cross_size": 1}
        self.topology = Topology(rank=rank, size=size, **fields)
        self._barrier, self._table = barrier, table

    def _exchange(self, tensor):
        self._table[self.topology.rank] = tensor.clone()
        self._barrier.wait(timeout=20)
        brought = [self._table[rank] for rank in range(self.topology.size)]
        self._barrier.wait(timeout=20)
        return brought

    def broadcast(self, tensor, name):
        return self._exchange(tensor)[0].clone()

    def allgather(self, tensor, name):
        return torch.cat(self._exchange(tensor))

    def allreduce_sum(self, tensor, name):
        return torch.stack(self._exchange(tensor)).sum(0)


@pytest.fixture
def on_ranks():
    """`on_ranks(size, function)`: function(collectives) on each of `size` ranks; their results, exceptions included."""

    def run(size, function):
        barrier, table = threading.Barrier(size), {}

        def one(rank):
            try:
                return function(Collectives(MeetingTransport(rank, size, barrier, table)))
            except Exception as error:
                return error

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(one, range(size)))

    return run
