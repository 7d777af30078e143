"""Parameter servers: beside workers and of their own, synchronous and not, with their state brought together."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scenarios import SAMPLES, adamw, apart, momentum, sgd, train_step, values
from test_traps import agree, joined
from torch import nn

from hvdtrain.config import SyncConfig
from hvdtrain.data.loader import loader
from hvdtrain.errors import UsageError
from hvdtrain.sync import prepare
from hvdtrain.sync.parameter_server import job_of_workers
from hvdtrain.sync.shards import deal
from hvdtrain.sync.strategies import job_of

ASYNCHRONOUS = SyncConfig(strategy="parameter_server", asynchronous=True)


def wide():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def worker_share(run, tensor, config):
    topology = job_of(run, config).topology
    if topology.rank >= run.topology.size:
        return tensor[:0]
    return tensor[len(tensor) * topology.rank // topology.size : len(tensor) * (topology.rank + 1) // topology.size]


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=20), st.integers(1, 5))
def test_every_tensor_has_one_owner_and_no_server_has_far_more(sizes, servers):
    owners = deal(sizes, range(servers))
    assert list(owners) == list(sizes)
    loads = [sum(sizes[name] for name, owner in owners.items() if owner == server) for server in range(servers)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


@pytest.mark.parametrize("optimizer", [momentum, adamw])
def test_a_server_of_its_own_gets_no_data_and_the_result_is_that_of_one_process(run, optimizer):
    if run.topology.size == 1:
        pytest.skip("a server of its own needs a second rank")
    config = SyncConfig(strategy="parameter_server", servers=run.topology.size // 2)
    model, alone = wide(), wide()
    sync = prepare(run, model, optimizer(model.parameters()), config=config, clip_norm=0.5)
    reference = optimizer(alone.parameters())
    shares = []
    for seed in range(5):
        x, y = joined(seed)
        mine = worker_share(run, x, config)
        shares.append(len(mine))
        train_step(sync, model, mine, worker_share(run, y, config), global_samples=SAMPLES)
        reference.zero_grad()
        F.mse_loss(alone(x), y).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        reference.step()
    difference, name = apart(values(alone), values(model))
    assert difference < 1e-6, name
    owned = [len(sync.optimizer.state[p]) > 0 for p in model.parameters()]
    with sync.settled():
        whole = [len(sync.optimizer.state[p]) > 0 for p in model.parameters()]
    rows = run.collectives.gather_json([shares, owned, whole])
    servers = range(run.topology.size - config.servers, run.topology.size)
    assert all(sum(rows[server][0]) == 0 for server in servers)
    assert not any(any(rows[worker][1]) for worker in range(servers.start))
    assert all(all(row[2]) for row in rows)
    sync.close()


def test_the_loader_divides_by_the_number_of_workers(run):
    if run.topology.size == 1:
        pytest.skip("a server of its own needs a second rank")
    job = job_of_workers(run, 1)
    mine = []
    for batch in loader(job, torch.utils.data.TensorDataset(torch.arange(20)), global_batch_size=8, seed=0):
        mine += batch.data[0].tolist() if batch.samples else []
        batch.commit()
    rows = run.collectives.gather_json(mine)
    assert rows[-1] == []
    assert sorted(value for row in rows for value in row) == list(range(20))


def test_servers_that_leave_no_worker_are_refused(run):
    if run.topology.size == 1:
        pytest.skip("one rank is its own server")
    model = wide()
    config = SyncConfig(strategy="parameter_server", servers=run.topology.size)
    with pytest.raises(UsageError, match="leaves no worker"):
        prepare(run, model, sgd(model.parameters()), config=config)


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("staleness", [0, 3])
def test_asynchronous_updates_train_within_their_bound(run, servers, staleness):
    if servers >= run.topology.size:
        pytest.skip("a server of its own needs a second rank")
    config = SyncConfig(strategy="parameter_server", asynchronous=True, servers=servers, staleness=staleness)
    model = wide()
    before = F.mse_loss(model(joined()[0]), joined()[1]).item()
    sync = prepare(run, model, sgd(model.parameters()), config=config)
    mine, theirs = (worker_share(run, tensor, config) for tensor in joined())
    for _ in range(40):
        train_step(sync, model, mine, theirs, global_samples=SAMPLES)
    with sync.settled():
        assert agree(run, model)
        after = F.mse_loss(model(joined()[0]), joined()[1]).item()
    report = run.collectives.gather_json(sync._exchange.report())
    sync.close()
    assert agree(run, model)
    assert after < 0.9 * before
    workers = run.topology.size - servers
    assert max(row["largest"] for row in report) <= (2 * staleness + 1) * (workers - 1) + (workers > 1)
    assert sum(row["updates"] > 0 for row in report) == (servers or run.topology.size)


def test_all_ranks_stop_at_the_same_asynchronous_step(run):
    model = wide()
    sync = prepare(run, model, sgd(model.parameters()), config=ASYNCHRONOUS)
    mine, theirs = (worker_share(run, tensor, ASYNCHRONOUS) for tensor in joined())
    stopped = None
    for step in range(60):
        sync.backward(F.mse_loss(model(mine), theirs), len(mine), global_samples=SAMPLES)
        if sync.update(global_samples=SAMPLES, stop=run.topology.is_root and step >= 20).stop:
            stopped = step
            break
    steps = run.collectives.gather_json(stopped)
    sync.close()
    assert len(set(steps)) == 1
    assert 20 < steps[0] < 30


def test_an_asynchronous_run_begins_again_from_a_saved_state(run):
    model = wide()
    optimizer = momentum(model.parameters())
    sync = prepare(run, model, optimizer, config=ASYNCHRONOUS)
    mine, theirs = (worker_share(run, tensor, ASYNCHRONOUS) for tensor in joined())
    for _ in range(3):
        train_step(sync, model, mine, theirs)
    with sync.settled():
        saved, state, own = values(model), optimizer.state_dict(), sync.state_dict()
        state = torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, state)
    for _ in range(3):
        train_step(sync, model, mine, theirs)
    model.load_state_dict(saved)
    optimizer.load_state_dict(state)
    sync.load_state_dict(own)
    with sync.settled():
        assert apart(saved, values(model))[0] == 0
        buffers = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
        assert all(torch.equal(b, state["state"][i]["momentum_buffer"]) for i, b in enumerate(buffers))
    train_step(sync, model, mine, theirs)
    sync.close()


def test_what_no_rank_uses_is_left_alone_by_an_asynchronous_server(run):
    model = nn.ModuleDict({"body": wide(), "idle": nn.Linear(2, 2)})
    before = model["idle"].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    sync = prepare(run, model, optimizer, config=ASYNCHRONOUS)
    mine, theirs = (worker_share(run, tensor, ASYNCHRONOUS) for tensor in joined())
    for _ in range(3):
        train_step(sync, model["body"], mine, theirs)
    sync.close()
    assert torch.equal(model["idle"].weight, before)
