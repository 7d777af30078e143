"""The traps of Horovod's PyTorch interface, each walked into through ours: what was promised happens.

The numbers are those of the list of traps: 1 state of an empty optimizer, 2 wrapping after loading, 3 unfreezing, 4
gradients that nobody has, 5 accumulation, 6 clipping, 7 ranks without data, 8 the end of the epoch, 9 what is refused
or missing there, 10 integers and places.
"""

import pytest
import torch
import torch.nn.functional as F
from scenarios import SAMPLES, adamw, apart, mlp, momentum, sgd, train_step, values
from torch import nn

from hvdtrain.config import SyncConfig
from hvdtrain.data.loader import loader
from hvdtrain.errors import UsageError
from hvdtrain.statetree import digest
from hvdtrain.sync import prepare
from hvdtrain.sync.normalization import convert_sync_batchnorm


def joined(seed=3, samples=SAMPLES):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 6, generator=generator), torch.randn(samples, 3, generator=generator)


def share(run, tensor):
    size, rank = run.topology.size, run.topology.rank
    return tensor[len(tensor) * rank // size : len(tensor) * (rank + 1) // size]


def step_on(run, sync, model, seed=3, **settings):
    x, y = joined(seed)
    return train_step(sync, model, share(run, x), share(run, y), **settings)


def agree(run, model):
    return len(set(run.collectives.gather_json(digest(values(model))))) == 1


def test_1_broadcasting_the_state_of_an_empty_optimizer_moves_no_weight(run):
    torch.manual_seed(run.topology.rank)
    model = mlp()
    of_root = run.collectives.broadcast(model[0].weight.detach())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    if run.topology.is_root:  # only root's has a state: as after a resume that root alone has read
        F.mse_loss(model(joined()[0]), joined()[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        of_root = model[0].weight.detach().clone()
    of_root = run.collectives.broadcast(of_root)
    prepare(run, model, optimizer)
    assert torch.equal(model[0].weight, of_root)
    assert float(optimizer.state[model[0].weight]["step"]) == 1
    assert agree(run, model)


def test_2_a_loaded_optimizer_keeps_its_state_and_defaults(run):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    F.mse_loss(model(joined()[0]), joined()[1]).backward()
    optimizer.step()
    buffer = optimizer.state[model[0].weight]["momentum_buffer"].clone()
    saved = optimizer.state_dict()
    again = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    again.load_state_dict(saved)
    sync = prepare(run, model, again)
    assert sync.optimizer is again
    assert again.defaults["lr"] == 0.25
    assert torch.equal(again.state[model[0].weight]["momentum_buffer"], buffer)


def test_3_parameters_unfrozen_or_added_later_are_averaged_too(run):
    torch.manual_seed(0)
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = prepare(run, model, optimizer)
    step_on(run, sync, model)
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    step_on(run, sync, model)
    torch.manual_seed(run.topology.rank)  # each rank builds another head
    model.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": model[-1].parameters()})
    step_on(run, sync, model)
    step_on(run, sync, model)
    assert not torch.equal(before, model[0].weight)
    assert agree(run, model)


def test_4_a_parameter_that_no_rank_used_is_left_alone(run):
    torch.manual_seed(0)
    model = nn.ModuleDict({"body": mlp(), "idle": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    sync = prepare(run, model, optimizer)
    before = model["idle"].weight.detach().clone()
    for seed in range(3):
        step_on(run, sync, model["body"], seed)
    assert torch.equal(model["idle"].weight, before)
    assert model["idle"].weight not in optimizer.state or not optimizer.state[model["idle"].weight]


def test_4_a_parameter_used_on_one_rank_gets_the_mean_over_all_samples(run):
    torch.manual_seed(0)
    layer = nn.Linear(1, 1, bias=False)
    other = nn.Linear(1, 1, bias=False)
    model = nn.ModuleList([layer, other])
    sync = prepare(run, model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = other.weight.detach().clone()
    x = torch.ones(2, 1)
    y = layer(x) + (other(x) if run.topology.is_root else 0)
    sync.backward(y.mean(), 2)
    sync.update()
    assert torch.allclose(other.weight, before - 1 / run.topology.size)


@pytest.mark.parametrize("microbatch", [1, 2, 5])
def test_5_accumulation_is_a_mean_with_a_smaller_last_part(run, microbatch):
    results = []
    for size in (SAMPLES, microbatch):
        torch.manual_seed(0)
        model = mlp()
        sync = prepare(run, model, momentum(model.parameters()))
        for seed in range(3):
            step_on(run, sync, model, seed, microbatch=size)
            sync.optimizer.zero_grad(set_to_none=True)
        results.append(values(model))
    difference, name = apart(*results)
    assert difference < 1e-6, name


def test_6_clipping_sees_the_averaged_gradient_once(run):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    sync = prepare(run, model, optimizer, clip_norm=0.01)
    before = values(model)
    result = step_on(run, sync, model)
    moved = torch.cat([(after - before[name]).reshape(-1) for name, after in values(model).items()])
    alone = mlp()
    alone.load_state_dict(before)
    F.mse_loss(alone(joined()[0]), joined()[1]).backward()
    norm = torch.cat([parameter.grad.reshape(-1) for parameter in alone.parameters()]).norm()
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-4)
    assert result.gradient_norm == pytest.approx(float(norm), rel=1e-5)


def test_7_a_rank_without_data_does_not_shrink_the_gradient(run):
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    sync = prepare(run, model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.detach().clone()
    if run.topology.is_root:
        sync.backward(model(torch.full((4, 1), 2.0)).mean(), 4)
    result = sync.update()
    assert result.samples == 4
    assert torch.allclose(model.weight, before - 2.0)


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 13])
def test_8_each_sample_is_used_once_also_when_fewer_than_ranks_remain(run, samples):
    data = torch.utils.data.TensorDataset(torch.arange(samples))
    batches = loader(run, data, global_batch_size=4, seed=1)
    mine = []
    for batch in batches:
        mine += [] if batch.samples == 0 else batch.data[0].tolist()
        batch.commit()
    seen = sorted(value for row in run.collectives.gather_json(mine) for value in row)
    assert seen == list(range(samples))


def test_9_adasum_on_a_size_that_is_no_power_of_two_is_refused_before_the_start(run):
    model = mlp()
    config = SyncConfig(operation="adasum")
    if run.topology.size in (1, 2, 4):
        prepare(run, model, sgd(model.parameters()), config=config).close()
    else:
        with pytest.raises(UsageError, match="power of two"):
            prepare(run, model, sgd(model.parameters()), config=config)


def test_9_sync_batchnorm_works_on_the_cpu(run):
    torch.manual_seed(0)
    x = joined()[0]
    layer = convert_sync_batchnorm(nn.BatchNorm1d(6), run.collectives)
    y = layer(share(run, x))
    assert torch.allclose(y, share(run, nn.BatchNorm1d(6)(x)), atol=1e-6)


def test_9_bfloat16_parameters_are_averaged(run):
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.constant_(model.weight, 1.0)
    sync = prepare(run, model, torch.optim.SGD(model.parameters(), lr=1.0))
    x = torch.full((1, 1), float(run.topology.rank), dtype=torch.bfloat16)
    sync.backward(model(x).float().mean(), 1)
    sync.update()
    expected = 1 - torch.tensor((run.topology.size - 1) / 2)
    assert float(model.weight.detach()) == pytest.approx(float(expected), abs=0.01)


@pytest.mark.parametrize("sparse", ["gather", "dense"])
@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_9_sparse_gradients_are_exchanged(run, sparse, kind):
    makers = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1), "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1)}

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
        return model, makers[kind](model.parameters())

    torch.sparse.check_sparse_tensor_invariants.enable()  # torch's Adagrad warns without
    words = torch.randint(0, 20, (SAMPLES, 2), generator=torch.Generator().manual_seed(5))
    alone, optimizer = build()
    model, other = build()
    sync = prepare(run, model, other, config=SyncConfig(sparse=sparse))
    for _ in range(4):
        optimizer.zero_grad()
        alone(words).square().mean().backward()
        optimizer.step()
        if len(share(run, words)):
            sync.backward(model(share(run, words)).square().mean(), len(share(run, words)))
        sync.update()
    difference, name = apart(values(alone), values(model))
    assert difference < 1e-6, (name, difference)
    assert agree(run, model)


def test_9_an_optimizer_that_needs_a_closure_is_refused_with_the_reason(run):
    model = mlp()
    with pytest.raises(UsageError, match="closure"):
        prepare(run, model, torch.optim.LBFGS(model.parameters()))


def test_10_whole_numbers_are_summed_exactly_and_arguments_stay(run):
    mine = torch.tensor([run.topology.rank, 2**40 + 1])
    kept = mine.clone()
    total = run.collectives.allreduce_sum(mine)
    assert total.tolist() == [sum(range(run.topology.size)), run.topology.size * (2**40 + 1)]
    assert torch.equal(mine, kept)


def test_10_metrics_are_means_and_not_floored(run):
    model = mlp()
    sync = prepare(run, model, adamw(model.parameters()), metrics=("right",))
    x, y = joined()
    right = int(run.topology.is_root)  # a whole number: right on root alone
    sync.backward(F.mse_loss(model(share(run, x)), share(run, y)), len(share(run, x)), metrics={"right": right})
    result = sync.update()
    assert result.metrics["right"] == pytest.approx(1 / run.topology.size)
