"""Ranks without MPI: what loaders must know of a run, and collectives between threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch

from hvdtrain.collectives import Collectives
from hvdtrain.topology import Topology


def topology_of(rank, size, local_size=None):
    local_size = local_size or size
    return Topology(
        rank=rank,
        size=size,
        local_rank=rank % local_size,
        local_size=local_size,
        cross_rank=rank // local_size,
        cross_size=-(-size // local_size),
    )


def job(rank=0, size=1, seed=3):
    return SimpleNamespace(topology=topology_of(rank, size), seed=seed)


class ThreadTransport:
    """Collectives between ranks that are threads of one process."""

    def __init__(self, topology, board, barrier):
        self.topology, self._board, self._barrier = topology, board, barrier

    def _exchange(self, tensor):
        self._board[self.topology.rank] = tensor.clone()
        self._barrier.wait(timeout=60)
        everyone = list(self._board)
        self._barrier.wait(timeout=60)
        return everyone

    def broadcast(self, tensor, name):
        root = self._exchange(tensor)[0]
        assert root.shape == tensor.shape
        return root.clone()

    def allgather(self, tensor, name):
        return torch.cat(self._exchange(tensor))

    def allreduce_sum(self, tensor, name):
        return torch.stack(self._exchange(tensor)).sum(0)


def on_ranks(size, function, *, local_size=None):
    """Run `function(collectives)` on so many ranks; the list of values, or of what each raised."""
    board, barrier = [None] * size, threading.Barrier(size)

    def rank_main(rank):
        collectives = Collectives(ThreadTransport(topology_of(rank, size, local_size), board, barrier))
        try:
            return function(collectives)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank_main, range(size)))
