"""The exchange on GPUs, one for each rank or shared; listed in docs/gpu.md."""

import pytest
import torch
import torch.nn.functional as F
from scenarios import SAMPLES, apart, momentum, normalised, values
from test_traps import agree, joined, share

from hvdtrain.config import SyncConfig
from hvdtrain.errors import UsageError
from hvdtrain.sync import prepare
from hvdtrain.sync.normalization import convert_sync_batchnorm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

CONFIGURATIONS = {
    "allreduce": (SyncConfig(), "fp32", 1e-5),
    "fp16 on the wire": (SyncConfig(compression="fp16"), "fp32", 5e-3),
    "powersgd": (SyncConfig(compression="powersgd", powersgd_rank=1), "fp32", 0.3),
    "parameter_server": (SyncConfig(strategy="parameter_server"), "fp32", 1e-5),
    "bf16": (SyncConfig(), "bf16", 1e-2),
    "fp16": (SyncConfig(), "fp16", 5e-3),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_steps_on_gpus_are_those_of_one_process(run, name):
    config, precision, tolerance = CONFIGURATIONS[name]
    torch.manual_seed(0)
    alone = normalised()
    torch.manual_seed(0)
    model = convert_sync_batchnorm(normalised(), run.collectives).to(run.device)
    reference = momentum(alone.parameters())
    sync = prepare(run, model, momentum(model.parameters()), config=config, precision=precision)
    for seed in range(10):
        x, y = joined(seed)
        mine, theirs = share(run, x).to(run.device), share(run, y).to(run.device)
        with sync.autocast():
            loss = F.mse_loss(model(mine), theirs)
        sync.backward(loss, len(mine), global_samples=SAMPLES)
        sync.update(global_samples=SAMPLES)
        reference.zero_grad()
        F.mse_loss(alone(x), y).backward()
        reference.step()
    model.cpu()
    difference, tensor = apart(values(alone), values(model))
    assert difference < tolerance, tensor
    assert agree(run, model)


def test_shared_memory_is_refused_for_gradients_on_a_gpu(run):
    model = torch.nn.Linear(2, 2).to(run.device)
    with pytest.raises(UsageError, match="NCCL"):
        prepare(run, model, momentum(model.parameters()), config=SyncConfig(strategy="shared_memory"))
