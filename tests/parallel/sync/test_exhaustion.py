"""Ranks with different numbers of batches: no rank waits for ever, and no sample counts more or less than it should."""

import pytest
import torch
from torch import nn

import hvdtrain
from hvdtrain.errors import NonFiniteLoss
from hvdtrain.sync import prepare
from hvdtrain.sync.exhaustion import together

BATCHES = {
    "7, 5 and 0": (7, 5, 0, 3),
    "the first has none": (0, 4, 6, 1),
    "nobody has any": (0, 0, 0, 0),
    "one batch fewer": (4, 4, 4, 3),
}


def batch_of(rank, index):
    """Batches differ in size, too."""
    generator = torch.Generator().manual_seed(1000 * rank + index)
    return torch.randn(2 + (rank + index) % 3, 6, generator=generator, dtype=torch.float64)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def alone(counts):
    """One process that sees, in each step, the samples that all ranks together saw in it."""
    model, optimizer = build()
    for index in range(max(counts)):
        joined = torch.cat([batch_of(rank, index) for rank, count in enumerate(counts) if index < count])
        optimizer.zero_grad()
        (model(joined) - 1).pow(2).mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", BATCHES)
def test_parameters_are_those_of_one_process_on_the_same_samples(run, name):
    counts = BATCHES[name][: run.topology.size]
    model, optimizer = build()
    sync = prepare(run, model, optimizer, name="exhaustion")
    steps = 0
    for x in together([batch_of(run.topology.rank, index) for index in range(counts[run.topology.rank])], sync):
        sync.backward((model(x) - 1).pow(2).mean(), samples=len(x))
        sync.update()
        steps += 1
    made = sync.state_dict()["steps"]
    sync.close()
    expected = dict(alone(counts).named_parameters()) if max(counts) else dict(build()[0].named_parameters())
    apart = max((p - expected[key]).detach().abs().max().item() for key, p in model.named_parameters())
    rows = run.collectives.gather_json([steps, made, apart])
    assert [row[0] for row in rows] == list(counts)
    assert [row[1] for row in rows] == [max(counts)] * run.topology.size
    assert max(row[2] for row in rows) <= 1e-6, rows


def test_a_wrapped_loader_gives_the_same_without_an_idle_loop(run):
    """A wrapped loader needs one batch on each rank, from which it makes empty ones."""
    counts = (7, 5, 1, 3)[: run.topology.size]
    model, optimizer = build()
    sync = prepare(run, model, optimizer, name="wrapped")
    mine = [batch_of(run.topology.rank, index) for index in range(counts[run.topology.rank])]
    samples = 0
    for batch in hvdtrain.wrap_dataloader(run, mine, samples_of=len):
        loss = (model(batch.data) - 1).pow(2).mean() if batch.samples else torch.zeros(())
        samples += batch.samples
        sync.step(loss, batch)
    sync.close()
    expected = dict(alone(counts).named_parameters())
    apart = max((p - expected[key]).detach().abs().max().item() for key, p in model.named_parameters())
    rows = run.collectives.gather_json([samples, apart])
    wanted = [sum(len(batch_of(rank, index)) for index in range(count)) for rank, count in enumerate(counts)]
    assert [row[0] for row in rows] == wanted
    assert max(row[1] for row in rows) <= 1e-6


def test_a_stop_asked_by_a_rank_without_batches_is_agreed(run):
    idle = run.topology.size - 1
    model, optimizer = build()
    sync = prepare(run, model, optimizer, name="stopping")
    steps = 0
    mine = [batch_of(0, index) for index in range(20)] if run.topology.rank != idle or idle == 0 else []
    for x in together(mine, sync, stop_asked=lambda: True):
        sync.backward((model(x) - 1).pow(2).mean(), samples=len(x))
        steps += 1
        if sync.update(stop=idle == 0).stop:
            break
    rows = run.collectives.gather_json(steps)
    sync.close()
    assert set(rows[:-1] or rows) == {1}


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_numbers_that_are_not_finite_are_seen_by_all_ranks_alike(run, where):
    bad = run.topology.size - 1
    outcomes = []
    for policy in ("fail", "skip"):
        model, optimizer = build()
        sync = prepare(run, model, optimizer, name=f"numbers-{policy}", nonfinite=policy)
        before = [p.detach().clone() for p in model.parameters()]
        loss = (model(batch_of(run.topology.rank, 0)) - 1).pow(2).mean()
        if run.topology.rank == bad:
            loss = loss * float("nan") if where == "loss" else (model[0].weight * 0).sum().sqrt() + loss
        try:
            sync.backward(loss, samples=3)
            result = sync.update()
            same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            outcomes.append([policy, list(result.nonfinite), same])
        except NonFiniteLoss as error:
            outcomes.append([policy, error.agreed, error.rank])
        sync.close()
    rows = run.collectives.gather_json(outcomes)
    ranks = [bad] if where == "loss" else list(range(run.topology.size))
    assert rows == [[["fail", True, bad if where == "loss" else None], ["skip", ranks, True]]] * run.topology.size
