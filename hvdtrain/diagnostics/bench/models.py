"""The models of the benchmark and one batch for each, always the same; samples are per rank and step.

model, inputs, targets = build("transformer")
loss = torch.nn.functional.cross_entropy(model(inputs), targets)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

CLASSES = 16
TOKENS, WIDTH, HEADS, BLOCKS = 64, 256, 8, 6  # of the transformer
LAYERS, NARROW = 150, 64


@dataclass(frozen=True)
class Built:
    """A model with its batch.

    Attributes:
        model: on the CPU, with the same initial weights on every rank.
        inputs: of one step on one rank, the samples along dimension 0.
        targets: classes, int64; what `loss` compares with.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    @property
    def samples(self) -> int:
        """Samples per rank and step."""
        return len(self.inputs)

    def loss(self, model: nn.Module | None = None) -> Tensor:
        """Mean cross entropy over the batch, of the model or of what wraps it."""
        scores = (model or self.model)(self.inputs)
        return nn.functional.cross_entropy(scores.flatten(0, -2), self.targets.flatten())


class Transformer(nn.Module):
    """A decoder over few symbols; 4.7 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(CLASSES, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """From (batch, position) to scores: (batch, position, CLASSES)."""
        scores: Tensor = self.head(self.blocks(self.symbols(text), mask=self.mask, is_causal=True))
        return scores


def _mlp() -> Built:
    widths = (1024, 2048, 2048, 2048, 1024)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return Built(nn.Sequential(*layers[:-1]), torch.randn(64, 1024), torch.randint(0, 1024, (64,)))


def _transformer() -> Built:
    text = torch.randint(0, CLASSES, (8, TOKENS + 1))
    return Built(Transformer(), text[:, :-1].contiguous(), text[:, 1:].contiguous())


def _cnn() -> Built:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),  # (batch, 128 * 4 * 4)
        nn.Linear(2048, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    return Built(model, torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))


def _narrow() -> Built:
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(NARROW, NARROW), nn.Tanh()]
    return Built(nn.Sequential(*layers[:-1]), torch.randn(32, NARROW), torch.randint(0, NARROW, (32,)))


def _tiny() -> Built:
    return Built(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4), torch.randint(0, 4, (2,)))


MODELS: dict[str, tuple[Callable[[], Built], int]] = {  # name -> (how it is built, steps in one start)
    "mlp": (_mlp, 16),
    "transformer": (_transformer, 12),
    "cnn": (_cnn, 30),
    "narrow": (_narrow, 40),
    "tiny": (_tiny, 4),
}
COMPARED = ("mlp", "transformer", "cnn", "narrow")


def build(name: str) -> Built:
    """A model and its batch, the same in every process; the generator of torch is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return MODELS[name][0]()


def check_models(names: Sequence[str]) -> None:
    """Refuse names that are none.

    Raises:
        KeyError: with the first of them.
    """
    for name in names:
        MODELS[name]
