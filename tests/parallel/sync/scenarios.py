"""Trainings of ten steps that a strategy must make as one process on the joined batch does.

A scenario says what is trained, how a step's samples are dealt to the ranks and cut into microbatches, and what is
limited or changed on the way. `alone` is the reference: plain torch, one process, one backward pass per step.

    expected = alone(scenario, size)                       # parameters and buffers, by name
    got = together(run, scenario, SyncConfig())            # the same through hvdtrain.sync.prepare
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from hvdtrain.config import SyncConfig
from hvdtrain.sync import prepare
from hvdtrain.sync.normalization import convert_sync_batchnorm

STEPS = 10
SAMPLES = 12  # per step, over all ranks


def equal(step, size):
    return [SAMPLES // size] * size  # 12 is a multiple of 1, 2, 3 and 4


def unequal(step, size):
    """Rank r gets r + 1 parts; who gets most moves on from step to step."""
    weights = [(rank + step) % size + 1 for rank in range(size)]
    counts = [SAMPLES * weight // sum(weights) for weight in weights]
    counts[0] += SAMPLES - sum(counts)
    return counts


def idle(step, size):
    """One rank, another one each step, has no sample at all."""
    workers = [rank for rank in range(size) if rank != step % size] or [0]
    counts = [0] * size
    for index, rank in enumerate(workers):
        counts[rank] = SAMPLES // len(workers) + (index < SAMPLES % len(workers))
    return counts


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def frozen():
    model = mlp()
    model[0].requires_grad_(False)
    return model


class Unused(nn.Module):
    """Has a layer that no step uses, and one that only the samples with a positive first feature use."""

    def __init__(self):
        super().__init__()
        self.body, self.never, self.sometimes = mlp(), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        y = self.body(x)
        chosen = x[:, 0] > 0
        if chosen.any():
            y = y + self.sometimes(x) * chosen[:, None]
        return y


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.last(torch.tanh(self.first(x))))


def normalised():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    build: Callable[[], nn.Module] = mlp
    optimizer: Callable = sgd
    shares: Callable[[int, int], list[int]] = equal
    microbatch: int = SAMPLES  # samples; a share that it does not divide has a smaller last one
    prepared: dict = field(default_factory=dict)  # for prepare(): clipping, precision, ...
    scale: float = 1.0  # of the targets, and so of the gradients
    tolerance: float = 1e-6
    linear: bool = True  # the update is linear in the gradient and no gradient is limited
    normalised: bool = False


SCENARIOS = [
    Scenario(name="equal"),
    Scenario(name="unequal", shares=unequal),
    Scenario(name="idle", shares=idle),
    Scenario(name="accumulated", shares=unequal, microbatch=2, optimizer=momentum),
    Scenario(name="decay", shares=unequal, optimizer=adamw, linear=False),
    Scenario(name="clip_norm", shares=idle, microbatch=5, prepared={"clip_norm": 0.1}, scale=5.0, linear=False),
    Scenario(name="clip_value", shares=unequal, prepared={"clip_value": 0.02}, scale=5.0, linear=False),
    Scenario(name="frozen", build=frozen, optimizer=momentum, shares=unequal),
    Scenario(name="unused", build=Unused, optimizer=momentum, shares=unequal, linear=False),
    Scenario(name="batchnorm", build=normalised, normalised=True, shares=unequal, tolerance=2e-6, linear=False),
    Scenario(
        name="batchnorm2d",
        build=convolutional,
        normalised=True,
        shares=idle,
        optimizer=momentum,
        tolerance=2e-6,
        linear=False,
    ),
    Scenario(name="bf16", shares=unequal, microbatch=5, prepared={"precision": "bf16"}, tolerance=5e-3, linear=False),
    Scenario(name="fp16", shares=idle, microbatch=5, prepared={"precision": "fp16"}, tolerance=1e-3, linear=False),
    Scenario(name="tied", build=Tied, optimizer=momentum, shares=unequal, microbatch=3),
]


def batch_of(scenario, step):
    """The joined batch: ((SAMPLES, 6), (SAMPLES, 3))."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return x, torch.randn(SAMPLES, 3, generator=generator) * scenario.scale


def built(scenario, seed=7):
    torch.manual_seed(seed)
    model = scenario.build()
    return model, scenario.optimizer([p for p in model.parameters() if p.requires_grad])


def values(model):
    return {name: tensor.detach().clone().float() for name, tensor in model.state_dict().items()}


def alone(scenario):
    """The parameters and buffers after STEPS steps of one process in fp32."""
    model, optimizer = built(scenario)
    for step in range(STEPS):
        x, y = batch_of(scenario, step)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if "clip_norm" in scenario.prepared:
            nn.utils.clip_grad_norm_(model.parameters(), scenario.prepared["clip_norm"])
        if "clip_value" in scenario.prepared:
            nn.utils.clip_grad_value_(model.parameters(), scenario.prepared["clip_value"])
        optimizer.step()
    return values(model)


def share_of(scenario, step, topology):
    counts = scenario.shares(step, topology.size)
    start = sum(counts[: topology.rank])
    x, y = batch_of(scenario, step)
    return x[start : start + counts[topology.rank]], y[start : start + counts[topology.rank]]


def train_step(sync, model, x, y, *, microbatch=SAMPLES, **known):
    """One step on this rank's share, cut into microbatches."""
    starts = list(range(0, len(x), microbatch))
    for start in starts:
        xs, ys = x[start : start + microbatch], y[start : start + microbatch]
        with sync.autocast():
            loss = F.mse_loss(model(xs), ys)
        sync.backward(loss, len(xs), last=start == starts[-1], **known)
    return sync.update(**known)


def together(run, scenario, config: SyncConfig, *, known=True, hook=None):
    """The parameters and buffers after the same steps on all ranks; what is not root's is built from another seed."""
    model, optimizer = built(scenario, seed=7 + run.topology.rank)
    if scenario.normalised:
        model = convert_sync_batchnorm(model, run.collectives)
    sync = prepare(run, model, optimizer, config=config, **scenario.prepared)
    for step in range(STEPS):
        x, y = share_of(scenario, step, run.topology)
        train_step(sync, model, x, y, microbatch=scenario.microbatch, **({"global_samples": SAMPLES} if known else {}))
        if hook:
            hook(step, model)
    sync.close()
    return values(model)


def apart(one, other):
    """The largest difference of any element, and the name of its tensor."""
    return max((float((one[name] - other[name]).abs().max()), name) for name in one)
