"""`auto` follows from where ranks are and what was configured; all ranks choose alike."""

from dataclasses import replace

import pytest
import torch

from hvdtrain.config import SyncConfig
from hvdtrain.sync.automatic import fastest_exact
from hvdtrain.sync.shared_memory import SharedMemoryExchange
from hvdtrain.sync.strategies import build_exchange


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(100))], lr=0.1)


def test_ranks_of_one_host_share_its_memory(run, optimizer):
    choice = fastest_exact(run, optimizer, SyncConfig(strategy="auto"))
    shares = run.topology.size > 1
    assert choice.strategy == ("shared_memory" if shares else "allreduce")
    assert choice.why == (f"{run.topology.size} ranks on 1 host" if shares else "there is one rank")
    exchange = build_exchange(run, optimizer, SyncConfig(strategy="auto"), name="auto")
    assert isinstance(exchange, SharedMemoryExchange) == shares
    exchange.close()


def test_ranks_that_are_alone_on_their_hosts_have_nothing_to_share(run, optimizer):
    apart = replace(run, hosts=tuple(f"node{rank}" for rank in range(run.topology.size)))
    assert fastest_exact(apart, optimizer, SyncConfig(strategy="auto")).strategy == "allreduce"


@pytest.mark.parametrize("setting", [{"compression": "fp16"}, {"compression": "powersgd"}, {"operation": "adasum"}])
def test_what_only_horovod_can_do_is_done_by_horovod(run, optimizer, setting):
    choice = fastest_exact(run, optimizer, SyncConfig(strategy="auto", **setting))
    assert choice.strategy == "allreduce"
    assert next(iter(setting.values())) in choice.why


def test_without_mpi_or_room_there_is_no_window(run, optimizer):
    if run.topology.size == 1:
        return
    gloo = replace(run, controller="gloo")
    choice = fastest_exact(gloo, optimizer, SyncConfig(strategy="auto"))
    assert choice.strategy == "allreduce"
    assert "only MPI has shared windows" in choice.why
    with torch.device("meta"):
        huge = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2**45))], lr=0.1)
    assert "MiB free and the window needs" in fastest_exact(run, huge, SyncConfig(strategy="auto")).why
