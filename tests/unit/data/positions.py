"""Ranks without MPI: what loaders must know of a run, and collectives between threads."""

from types import SimpleNamespace

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
