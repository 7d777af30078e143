"""The same run twice has the same bits, however long each rank takes in each phase."""

import time

import pytest
import torch
import torch.nn.functional as F
from scenarios import SAMPLES, momentum
from test_traps import joined, share
from torch import nn

from hvdtrain.config import SyncConfig
from hvdtrain.statetree import digest
from hvdtrain.sync import prepare

DETERMINISTIC = {
    "allreduce": SyncConfig(bucket_bytes=2000),
    "sum": SyncConfig(bucket_bytes=2000, operation="sum"),
    "fp16": SyncConfig(bucket_bytes=2000, compression="fp16"),
    "powersgd": SyncConfig(compression="powersgd", powersgd_rank=2),
    "adasum": SyncConfig(operation="adasum"),
    "shared_memory": SyncConfig(strategy="shared_memory", bucket_bytes=2000),
    "parameter_server": SyncConfig(strategy="parameter_server"),
    "local_sgd": SyncConfig(strategy="local_sgd", local_steps=2, outer_momentum=0.5),
}
LONGEST_S = 0.004


def delayed_model(delay):
    """A model whose forward and backward passes take their time at every layer."""
    torch.manual_seed(5)
    layers = [layer for _ in range(3) for layer in (nn.Linear(24, 24), nn.Tanh())]
    model = nn.Sequential(nn.Linear(6, 24), *layers, nn.Linear(24, 3))
    for layer in model:
        layer.register_forward_hook(lambda *_: delay())
        for parameter in layer.parameters():
            parameter.register_hook(lambda _: delay())
    return model


def trained(run, config, turn):
    """The digest of the parameters after four steps, with delays that differ between turns, ranks and phases."""
    chance = torch.Generator().manual_seed(100 * turn + run.topology.rank)

    def delay():
        time.sleep(float(torch.rand((), generator=chance)) * LONGEST_S)

    model = delayed_model(delay)
    lr = 0.001 if config.operation == "sum" else 0.05
    optimizer = momentum([{"params": model.parameters(), "lr": lr}])
    optimizer.register_step_pre_hook(lambda *_: delay())
    sync = prepare(run, model, optimizer, config=config)
    for seed in range(4):
        x, y = joined(seed)
        delay()  # data
        for part in share(run, torch.arange(SAMPLES)).split(2):
            loss = F.mse_loss(model(x[part]), y[part])
            delay()
            sync.backward(loss, len(part), last=part[-1] == share(run, torch.arange(SAMPLES))[-1])
        delay()  # before the exchange is completed
        sync.update()
    sync.settle()
    sync.close()
    return digest(model.state_dict())


@pytest.mark.parametrize("strategy", DETERMINISTIC)
def test_delays_in_every_phase_do_not_change_a_bit(run, strategy):
    if strategy == "adasum" and run.topology.size == 3:
        pytest.skip("adasum needs a power of two")
    digests = [trained(run, DETERMINISTIC[strategy], turn) for turn in range(2)]
    rows = run.collectives.gather_json(digests)
    assert len({value for row in rows for value in row}) == 1
