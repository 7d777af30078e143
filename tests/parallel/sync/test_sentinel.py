"""One number changed on one rank: named at the next check, or repaired so that nothing is left of it."""

import pytest
import torch
from torch import nn

from hvdtrain.config import SentinelConfig
from hvdtrain.errors import ReplicaMismatch
from hvdtrain.statetree import digest
from hvdtrain.sync import prepare
from hvdtrain.sync.replicas import replica_digests

STEPS, CHANGED_AT = 12, 8  # a check is due at 4 and 8


class Model(nn.Module):
    """With a buffer that no rank changes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        self.register_buffer("offset", torch.linspace(0, 1, 5))

    def forward(self, x):
        return self.body(x) + self.offset.sum()


def weight(model, optimizer):
    return "model.body.0.weight", model.body[0].weight


def buffer(model, optimizer):
    return "model.offset", model.offset


def moment(model, optimizer):
    return "optimizer.2.exp_avg", optimizer.state[model.body[2].weight]["exp_avg"]


CHANGED = [weight, buffer, moment]


def train(run, policy, changed=None, rank=-1, at=CHANGED_AT):
    """Steps on fixed data; before update `at` one number on one rank loses or gains one bit."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sync = prepare(run, model, optimizer, sentinel=SentinelConfig(every_steps=4, policy=policy), name="sentinel")
    repeats = 0
    for step in range(STEPS):
        if changed and step == at and run.topology.rank == rank:
            flat = changed(model, optimizer)[1].data.view(-1)
            flat.view(torch.int32)[3] ^= 1 << 20
        generator = torch.Generator().manual_seed(100 * step + run.topology.rank)
        x = torch.randn(4, 6, generator=generator)
        while True:
            sync.backward((model(x) - 1).pow(2).mean(), samples=4)
            if not sync.update().repeat:
                break
            repeats += 1
    sync.close()
    return digest(replica_digests_as_tree(model, optimizer)), repeats


def replica_digests_as_tree(model, optimizer):
    texts = "".join(f"{name}={value}" for name, value in sorted(replica_digests(model, optimizer).items()))
    return {"all": torch.frombuffer(bytearray(texts.encode()), dtype=torch.uint8)}


def others(run):
    """The ranks on which a change can be seen: those that are not the majority by themselves."""
    return range(run.topology.size) if run.topology.size > 2 else range(1, run.topology.size)


@pytest.mark.parametrize("changed", CHANGED)
def test_rank_and_first_tensor_are_named_at_the_next_check(run, changed):
    """A changed moment moves its rank's weights from the next update on, so it is changed right before the check."""
    at = CHANGED_AT if changed is moment else CHANGED_AT - 3
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 6)).sum().backward()
    optimizer.step()
    name = changed(model, optimizer)[0]
    for rank in others(run):
        found = None
        try:
            train(run, "fail", changed, rank, at=at)
        except ReplicaMismatch as error:
            found = [
                error.rank,
                error.agreed,
                f"at step {CHANGED_AT}, ranks [{rank}]" in str(error),
                name in str(error),
            ]
        assert run.collectives.gather_json(found) == [[rank, True, True, True]] * run.topology.size


@pytest.mark.parametrize("changed", CHANGED)
def test_repair_leaves_the_digest_of_a_clean_run(run, changed):
    clean, none = train(run, "fail")
    got = [train(run, "repair", changed, rank) for rank in others(run)]
    rows = run.collectives.gather_json([clean, *[digest for digest, _ in got]])
    assert none == 0
    assert {text for row in rows for text in row} == {clean}
    assert all(repeats == 1 for _, repeats in got)


def test_running_statistics_of_each_rank_are_no_difference(run):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sync = prepare(run, model, optimizer, sentinel=SentinelConfig(every_steps=1), name="statistics")
    generator = torch.Generator().manual_seed(run.topology.rank)
    for _ in range(4):
        sync.backward(model(torch.randn(8, 6, generator=generator)).pow(2).mean(), samples=8)
        sync.update()
    means = run.collectives.gather_json(model[1].running_mean.tolist())
    sync.close()
    assert run.topology.size == 1 or means[0] != means[1]
