"""Sum, Adasum, compression and local SGD: what each promises, against formulas and one process."""

import pytest
import torch
import torch.nn.functional as F
from scenarios import (
    SAMPLES,
    SCENARIOS,
    Scenario,
    alone,
    apart,
    built,
    idle,
    mlp,
    momentum,
    sgd,
    together,
    unequal,
    values,
)
from test_traps import agree, joined, share, step_on
from torch import nn

from hvdtrain.config import SyncConfig
from hvdtrain.diagnostics import compression
from hvdtrain.diagnostics.exchange import BASE, measure, table
from hvdtrain.errors import UsageError
from hvdtrain.sync import prepare
from hvdtrain.sync.powersgd import PowerSgdExchange, is_compressed
from hvdtrain.sync.strategies import combination_faults

LINEAR = [scenario for scenario in SCENARIOS if scenario.linear]


@pytest.mark.parametrize("strategy", ["allreduce", "shared_memory"])
@pytest.mark.parametrize("known", [True, False])
def test_sum_is_the_gradient_of_the_summed_loss(run, strategy, known):
    scenario = Scenario(name="sum", shares=unequal, microbatch=2)
    model, optimizer = built(scenario)
    sync = prepare(run, model, optimizer, config=SyncConfig(strategy=strategy, operation="sum"))
    reference, other = built(scenario)
    for seed in range(3):
        x, y = joined(seed)
        settings = {"global_samples": SAMPLES} if known else {}
        step_on(run, sync, model, seed, microbatch=2, **settings)
        other.zero_grad()
        (F.mse_loss(reference(x), y) * SAMPLES).backward()
        other.step()
    sync.close()
    difference, name = apart(values(reference), values(model))
    assert difference < 5e-6, name


def adasum(a, b):
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return a * (1 - dot / (2 * aa)) + b * (1 - dot / (2 * bb))


def test_adasum_combines_the_ranks_own_means_by_its_formula(run):
    if run.topology.size == 3:
        pytest.skip("3 is no power of two; that it is refused is tested with the traps")
    torch.manual_seed(0)
    model = nn.Linear(6, 1, bias=False)
    sync = prepare(run, model, torch.optim.SGD(model.parameters(), lr=1.0), config=SyncConfig(operation="adasum"))
    before = model.weight.detach().clone()
    rows = [
        torch.randn(rank + 2, 6, generator=torch.Generator().manual_seed(rank)) for rank in range(run.topology.size)
    ]
    mine = rows[run.topology.rank]
    sync.backward(model(mine).mean(), len(mine))
    sync.update()
    gradients = [row.mean(0, keepdim=True) for row in rows]
    while len(gradients) > 1:
        gradients = [adasum(a, b) for a, b in zip(gradients[::2], gradients[1::2], strict=True)]
    assert torch.allclose(before - model.weight.detach(), gradients[0], atol=1e-5)
    assert agree(run, model)


@pytest.mark.parametrize("scenario", LINEAR, ids=lambda scenario: scenario.name)
def test_fp16_on_the_wire_is_as_near_as_its_bound(run, scenario):
    difference, name = apart(alone(scenario), together(run, scenario, SyncConfig(compression="fp16")))
    assert difference < 5e-3, name


@pytest.mark.parametrize("scenario", LINEAR, ids=lambda scenario: scenario.name)
def test_local_sgd_of_one_step_is_the_all_reduce(run, scenario):
    config = SyncConfig(strategy="local_sgd", local_steps=1)
    difference, name = apart(alone(scenario), together(run, scenario, config))
    assert difference <= scenario.tolerance, f"{name} differs by {difference}"


def local_reference(size, steps, local_steps, beta, lr):
    """Local SGD written down for all ranks in one process."""
    torch.manual_seed(7)
    models = [mlp() for _ in range(size)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    optimizers = [sgd(model.parameters()) for model in models]
    anchor = [p.detach().clone() for p in models[0].parameters()]
    moves = [torch.zeros_like(p) for p in anchor]
    for step in range(steps):
        x, y = joined(step)
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            part = slice(SAMPLES * rank // size, SAMPLES * (rank + 1) // size)
            optimizer.zero_grad()
            F.mse_loss(model(x[part]), y[part]).backward()
            optimizer.step()
        if (step + 1) % local_steps == 0:
            for index, rows in enumerate(zip(*[model.parameters() for model in models], strict=True)):
                mean = torch.stack([row.detach() for row in rows]).mean(0)
                moves[index] = beta * moves[index] + (anchor[index] - mean)
                anchor[index] = anchor[index] - lr * moves[index]
                for row in rows:
                    row.data.copy_(anchor[index])
    return {name: p.detach() for name, p in models[0].named_parameters()}


@pytest.mark.parametrize(("beta", "lr"), [(0.0, 1.0), (0.5, 0.7)])
def test_local_sgd_with_outer_momentum_is_its_formula(run, beta, lr):
    torch.manual_seed(7)
    model = mlp()
    config = SyncConfig(strategy="local_sgd", local_steps=3, outer_momentum=beta, outer_lr=lr)
    sync = prepare(run, model, sgd(model.parameters()), config=config)
    for seed in range(9):
        step_on(run, sync, model, seed)
        assert agree(run, model) == ((seed + 1) % 3 == 0 or run.topology.size == 1)
    difference, name = apart(local_reference(run.topology.size, 9, 3, beta, lr), values(model))
    assert difference < 1e-6, name
    sync.close()


def test_between_averages_models_are_equal_for_evaluation_and_apart_again_afterwards(run):
    torch.manual_seed(7)
    model = mlp()
    sync = prepare(run, model, momentum(model.parameters()), config=SyncConfig(strategy="local_sgd", local_steps=4))
    step_on(run, sync, model, 0)
    own = values(model)
    with sync.settled():
        mean = values(model)
        assert agree(run, model)
    assert apart(own, values(model))[0] == 0
    sync.settle()
    assert apart(mean, values(model))[0] < 1e-6
    assert agree(run, model)


COMPRESSED = {
    "powersgd": SyncConfig(compression="powersgd", powersgd_rank=1),
    "local_sgd": SyncConfig(strategy="local_sgd", local_steps=4, outer_momentum=0.3),
    "local_sgd, averages alone": SyncConfig(strategy="local_sgd", local_steps=3),
    "fp16": SyncConfig(compression="fp16"),
    "shared_memory": SyncConfig(strategy="shared_memory"),
    "parameter_server": SyncConfig(strategy="parameter_server"),
    "allreduce": SyncConfig(),
}


def wide():
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))


@pytest.mark.parametrize("strategy", COMPRESSED)
@pytest.mark.parametrize("cut", [4, 5])
def test_a_run_goes_on_bit_for_bit_from_its_state(run, strategy, cut):
    config = COMPRESSED[strategy]

    def begin():
        torch.manual_seed(7)
        model = wide()
        optimizer = momentum(model.parameters())
        return model, optimizer, prepare(run, model, optimizer, config=config)

    model, _, sync = begin()
    for seed in range(9):
        step_on(run, sync, model, seed)
    sync.settle()
    straight = values(model)
    sync.close()

    model, optimizer, sync = begin()
    for seed in range(cut):
        step_on(run, sync, model, seed)
    with sync.settled():
        saved = {"model": values(model), "sync": sync.state_dict(), "rank": sync.rank_state()}
        saved = torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, saved)
        state = optimizer.state_dict()
        state = torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, state)
    sync.close()
    model, optimizer, sync = begin()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(state)
    sync.load_state_dict(saved["sync"])
    sync.load_rank_state(saved["rank"])
    for seed in range(cut, 9):
        step_on(run, sync, model, seed)
    sync.settle()
    assert apart(straight, values(model))[0] == 0
    sync.close()


def test_powersgd_is_exact_for_matrices_of_its_rank(run):
    model = nn.ParameterList([torch.zeros(30, 20), torch.zeros(7)])
    exchange = PowerSgdExchange(sgd(model.parameters()), name="exact", rank=2, warm_start=False)
    exchange.watch(dict(model.named_parameters()), 3)
    left = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
    right = torch.randn(run.topology.size, 2, 20, generator=torch.Generator().manual_seed(2))
    model[0].grad = left @ right[run.topology.rank]
    model[1].grad = torch.ones(7)
    summed = exchange.finish(torch.ones(3), 1)
    assert torch.allclose(model[0].grad, left @ right.sum(0), atol=1e-4)
    assert model[1].grad.tolist() == [run.topology.size] * 7
    assert summed.tolist() == [run.topology.size] * 3


def test_powersgd_is_refused_where_it_brings_nothing(run):
    model = mlp()
    with pytest.raises(UsageError, match="brings nothing"):
        prepare(run, model, sgd(model.parameters()), config=SyncConfig(compression="powersgd", powersgd_rank=4))


def test_powersgd_loses_nothing_for_good(run):
    """What was applied and what is still owed add up to what was given, over all ranks."""
    model = nn.ParameterList([torch.zeros(30, 20)])
    exchange = PowerSgdExchange(sgd(model.parameters()), name="owed", rank=1)
    exchange.watch(dict(model.named_parameters()), 1)
    generator = torch.Generator().manual_seed(run.topology.rank)
    given, applied = torch.zeros(30, 20), torch.zeros(30, 20)
    for _ in range(10):
        model[0].grad = torch.randn(30, 20, generator=generator)
        given += run.collectives.allreduce_sum(model[0].grad)
        exchange.finish(torch.ones(1), 1)
        applied += model[0].grad
    owed = run.collectives.allreduce_sum(exchange.rank_state()["errors"]["0"])
    assert torch.allclose(applied + owed, given, atol=1e-3)
    assert not torch.allclose(applied, given, atol=1.0)


def test_what_powersgd_owes_outlives_a_step_that_is_not_finite(run):
    model = nn.ParameterList([torch.zeros(30, 20)])
    exchange = PowerSgdExchange(sgd(model.parameters()), name="finite", rank=1)
    exchange.watch(dict(model.named_parameters()), 1)
    owed = []
    for bad in (False, True, False):
        model[0].grad = torch.randn(30, 20, generator=torch.Generator().manual_seed(run.topology.rank))
        if bad and run.topology.is_root:
            model[0].grad[3, 4] = float("nan")
        exchange.finish(torch.ones(1), 1)
        owed.append(exchange.rank_state()["errors"]["0"].clone())
        assert bool(torch.isfinite(model[0].grad).all()) is not bad
    assert torch.equal(owed[0], owed[1])
    assert bool(torch.isfinite(owed[2]).all())


def test_powersgd_takes_gradients_as_they_lie(run):
    """Transposed ones, as channels-last convolutions have them, and bf16 ones: the same sums."""
    dense = torch.randn(16, 3, 3, 3, generator=torch.Generator().manual_seed(run.topology.rank))
    found = []
    for gradient in (dense, dense.contiguous(memory_format=torch.channels_last), dense.bfloat16()):
        model = nn.ParameterList([torch.zeros(16, 3, 3, 3, dtype=gradient.dtype)])
        exchange = PowerSgdExchange(sgd(model.parameters()), name=f"lie{len(found)}", rank=2)
        exchange.watch(dict(model.named_parameters()), 1)
        model[0].grad = gradient.clone()
        exchange.finish(torch.ones(1), 1)
        found.append(model[0].grad.float())
    assert torch.allclose(found[0], found[1], atol=1e-4)
    assert torch.allclose(found[0], found[2], atol=0.05 * run.topology.size)


def test_powersgd_converges_where_the_gradient_is_full(run):
    """Least squares with a full-rank solution: rank 1 with error feedback gets there, and all ranks are equal."""
    torch.manual_seed(0)
    target = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(8, 12, bias=False)
    config = SyncConfig(compression="powersgd", powersgd_rank=1)
    sync = prepare(run, model, torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    x = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    for _ in range(150):
        mine = share(run, x)
        sync.backward(F.mse_loss(model(mine), mine @ target.T), len(mine), global_samples=24)
        result = sync.update(global_samples=24)
    assert result.loss < 1e-2
    assert agree(run, model)


@pytest.mark.parametrize(
    ("shape", "rank", "compressed"),
    [((7,), 1, False), ((30, 20), 4, True), ((8, 8), 4, False), ((16, 3, 3, 3), 2, True), ((0, 5), 1, False)],
)
def test_only_matrices_that_become_half_as_small_are_compressed(shape, rank, compressed):
    assert is_compressed(torch.Size(shape), rank) is compressed


IMPOSSIBLE = [
    ({"strategy": "shared_memory", "compression": "fp16"}, "fp32", "brings nothing on shared memory"),
    ({"strategy": "shared_memory", "compression": "powersgd"}, "fp32", "is for sync.strategy allreduce"),
    ({"strategy": "shared_memory", "operation": "adasum"}, "fp32", "adasum is Horovod's"),
    ({"strategy": "local_sgd", "operation": "sum"}, "fp32", "has no meaning"),
    ({"strategy": "local_sgd"}, "fp16", "take bf16"),
    ({"compression": "powersgd"}, "fp16", "take bf16"),
    ({"operation": "adasum", "compression": "fp16"}, "fp32", "angles"),
]


@pytest.mark.parametrize(("settings", "precision", "reason"), IMPOSSIBLE, ids=str)
def test_what_cannot_be_combined_is_refused_with_the_reason(run, settings, precision, reason):
    config = SyncConfig(**settings)
    assert len(combination_faults(config, precision=precision)) == 1
    model = mlp()
    with pytest.raises(UsageError, match=reason):
        prepare(run, model, sgd(model.parameters()), config=config, precision=precision)


def test_the_exchange_can_be_measured(run):
    times = measure(run, 80_000, turns=3)
    assert set(times) == {BASE, "shared_memory"}
    assert all(seconds > 0 for seconds in times.values())
    assert "of MPI_Allreduce" in table(times, 3)


def test_what_compression_brings_can_be_measured(run):
    samples = compression.measure(run, model="narrow", rounds=2, steps=1)
    assert all(len(of) == 2 and min(of) > 0 for of in samples[compression.STEP].values())
    shown = compression.as_json(samples)
    assert set(shown) == {"none", "fp16", "powersgd"}
    assert shown["none"]["none_over_it"]["median"] == 1
    assert compression.table(samples, "narrow").count("\n") == 3


def test_a_rank_without_samples_does_not_move_the_average(run):
    config = SyncConfig(strategy="local_sgd", local_steps=1)
    scenario = Scenario(name="idle", shares=idle)
    assert apart(alone(scenario), together(run, scenario, config))[0] < 1e-6
