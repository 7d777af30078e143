"""What scripts do with a step beside calling it: several models, checkpointing, compilation, precision, averages."""

import pytest
import torch
import torch.nn.functional as F
from scenarios import SAMPLES, Tied, apart, mlp, momentum, sgd, train_step, values
from test_traps import agree, joined, share, step_on
from torch import nn
from torch.utils.checkpoint import checkpoint

from hvdtrain.config import SyncConfig
from hvdtrain.errors import NonFiniteLoss, ReplicaMismatch, UsageError
from hvdtrain.sync import prepare
from hvdtrain.sync.precision import FIRST_SCALE
from hvdtrain.train.ema import ParameterAverage


def gan(noise, real, step):
    """Ten updates of a generator and a discriminator, by whoever makes the steps."""
    for _ in range(10):
        step("judge", lambda make, judge: F.softplus(-judge(real)).mean() + F.softplus(judge(make(noise))).mean())
        step("maker", lambda make, judge: F.softplus(-judge(make(noise))).mean())


def gan_models():
    torch.manual_seed(4)
    maker, judge = nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return maker, judge, {"maker": sgd(maker.parameters()), "judge": torch.optim.Adam(judge.parameters(), lr=0.01)}


@pytest.mark.parametrize("strategy", ["allreduce", "shared_memory"])
def test_a_gan_trains_as_one_process_does(run, strategy):
    noise, real = joined()[0][:, :2], joined()[0]
    maker, judge, optimizers = gan_models()

    def alone(name, loss):
        optimizers[name].zero_grad()
        loss(maker, judge).backward()
        optimizers[name].step()

    gan(noise, real, alone)
    maker2, judge2, optimizers2 = gan_models()
    config = SyncConfig(strategy=strategy)
    syncs = {
        "maker": prepare(run, maker2, optimizers2["maker"], config=config, name="maker"),
        "judge": prepare(run, judge2, optimizers2["judge"], config=config, name="judge"),
    }

    def shared(name, loss):
        syncs[name].backward(loss(maker2, judge2), len(share(run, real)), global_samples=SAMPLES)
        syncs[name].update()

    gan(share(run, noise), share(run, real), shared)
    for one, other in ((maker, maker2), (judge, judge2)):
        difference, name = apart(values(one), values(other))
        assert difference < 1e-6, name
    for sync in syncs.values():
        sync.close()


class Checkpointed(Tied):
    reentrant = False

    def forward(self, x):
        x = x.requires_grad_() if self.reentrant else x
        hidden = checkpoint(lambda z: torch.tanh(self.first(z)), x, use_reentrant=self.reentrant)
        hidden = checkpoint(self.last, hidden, use_reentrant=self.reentrant)  # the weight of `first`
        return self.head(hidden)


@pytest.mark.parametrize("strategy", ["allreduce", "shared_memory"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["saved tensors", "reentrant"])
def test_activation_checkpointing_with_tied_weights(run, reentrant, strategy):
    results = []
    for kind in (Tied, Checkpointed):
        torch.manual_seed(0)
        model = kind()
        model.reentrant = reentrant
        config = SyncConfig(strategy=strategy, overlap=not reentrant)
        sync = prepare(run, model, momentum(model.parameters()), config=config)
        for seed in range(4):
            step_on(run, sync, model, seed)
        sync.close()
        results.append(values(model))
    difference, name = apart(*results)
    assert difference < 1e-6, name


@pytest.mark.parametrize("strategy", ["allreduce", "shared_memory"])
def test_a_compiled_module_trains_as_itself(run, strategy):
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = mlp()
        sync = prepare(run, model, sgd(model.parameters()), config=SyncConfig(strategy=strategy))
        used = torch.compile(model, backend="aot_eager") if compiled else model
        for seed in range(3):
            step_on(run, sync, used, seed)
        sync.close()
        results.append(values(model))
    difference, name = apart(*results)
    assert difference < 1e-6, name


def test_ranks_that_unfreeze_different_parameters_are_told(run):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].requires_grad_(run.topology.is_root)
    if run.topology.size == 1:
        prepare(run, model, optimizer)
    else:
        with pytest.raises(ReplicaMismatch, match=r"0\.weight"):
            prepare(run, model, optimizer)


def test_clipping_what_stays_sparse_is_refused(run):
    model = nn.Embedding(3, 2, sparse=True)
    with pytest.raises(UsageError, match="sparse dense"):
        prepare(run, model, sgd(model.parameters()), clip_norm=1.0)
    prepare(run, model, sgd(model.parameters()), clip_norm=1.0, config=SyncConfig(sparse="dense"))


def test_an_overflow_on_one_rank_skips_the_update_on_all_and_halves_the_scale(run):
    torch.manual_seed(0)
    model = mlp()
    sync = prepare(run, model, sgd(model.parameters()), precision="fp16")
    before = values(model)
    x, y = share(run, joined()[0]), share(run, joined()[1])
    with sync.autocast():
        loss = F.mse_loss(model(x), y)
    handle = model[0].weight.register_hook(
        lambda grad: torch.full_like(grad, float("inf")) if run.topology.rank == run.topology.size - 1 else grad
    )
    sync.backward(loss, len(x))
    result = sync.update()
    handle.remove()
    assert result.overflowed
    assert result.committed
    assert sync.state_dict()["precision"]["scale"] == FIRST_SCALE / 2
    assert apart(before, values(model))[0] == 0
    assert not train_step(sync, model, x, y).overflowed
    assert apart(before, values(model))[0] > 0
    assert agree(run, model)


def test_the_scale_of_losses_is_part_of_the_state(run):
    model = mlp()
    sync = prepare(run, model, sgd(model.parameters()), precision="fp16")
    sync.load_state_dict({"steps": 7, "precision": {"scale": 128.0, "finite_steps": 5}})
    assert sync.state_dict()["precision"] == {"scale": 128.0, "finite_steps": 5}


def test_a_gradient_that_is_no_number_ends_all_ranks_alike(run):
    model = mlp()
    sync = prepare(run, model, sgd(model.parameters()))
    x, y = share(run, joined()[0]), share(run, joined()[1])
    scale = float("nan") if run.topology.is_root else 1.0
    sync.backward(F.mse_loss(model(x), y) * scale, len(x))
    with pytest.raises(NonFiniteLoss, match=r"ranks \[0\]"):
        sync.update()


def test_the_average_of_parameters_is_equal_on_all_ranks_and_comes_off_again(run):
    torch.manual_seed(run.topology.rank)
    model = mlp()
    sync = prepare(run, model, sgd(model.parameters()))
    average = ParameterAverage(model, decay=0.5)
    expected = values(model)
    for updates in range(1, 5):
        step_on(run, sync, model, updates)
        average.update(model)
        decay = min(0.5, (1 + updates) / (10 + updates))
        expected = {name: decay * expected[name] + (1 - decay) * now for name, now in values(model).items()}
    own = values(model)
    with average.applied(model):
        assert apart(expected, values(model))[0] < 1e-6
        assert agree(run, model)
    assert apart(own, values(model))[0] == 0
