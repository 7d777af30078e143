"""A byte-level language model: a small transformer on the English text of Python's own help topics.

    hvdtrain launch -np 2 -- hvdtrain run bytelm

The text comes with CPython (`pydoc_data.topics`, about 0.7 MB). It is cut into windows of `CONTEXT` + 1 bytes; the last
twentieth is held out. There is no dropout, so the training is the same on any number of ranks, up to rounding.
"""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hvdtrain.config import Config
from hvdtrain.recipes.recipe import Recipe
from hvdtrain.train.trainer import Output

DEFAULTS = {
    "train.epochs": 2,
    "train.global_batch_size": 32,
    "optimizer.name": "adamw",
    "optimizer.lr": 2e-3,
    "optimizer.weight_decay": 0.01,
    "optimizer.clip_norm": 1.0,
    "schedule.name": "cosine",
    "schedule.warmup_steps": 20,
    "checkpoint.every_epochs": 1,
}

CONTEXT = 64
WIDTH = 128
HEADS = 4
BLOCKS = 2


def recipe(config: Config) -> Recipe:
    """The whole training."""
    windows = load()
    cut = len(windows) - len(windows) // 20
    return Recipe(
        model=ByteTransformer(),
        loss=loss,
        train_data=TensorDataset(windows[:cut]),
        eval_data=TensorDataset(windows[cut:]),
        metrics=("accuracy",),
    )


def load() -> Tensor:
    """The text as windows of bytes, int64 of shape (windows, CONTEXT + 1); neighbours share one byte."""
    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    flat = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return flat.unfold(0, CONTEXT + 1, CONTEXT).contiguous()


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each with a residual and a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, position, WIDTH) to the same."""
        batch, positions, _ = x.shape
        heads = self.project_in(self.attention_norm(x)).view(batch, positions, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each: (batch, head, position, WIDTH / HEADS)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, positions, WIDTH))
        out: Tensor = x + self.feed_forward(x)
        return out


class ByteTransformer(nn.Module):
    """A decoder over bytes, 0.5 M parameters; Vaswani et al. 2017, https://arxiv.org/abs/1706.03762."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.positions = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, text: Tensor) -> Tensor:
        """From bytes, int64 (batch, position), to scores of the next ones, (batch, position, 256)."""
        out: Tensor = self.head(self.blocks(self.bytes(text) + self.positions))
        return out


def loss(model: nn.Module, data: Any) -> Output:
    """Cross entropy (in nats per byte) and accuracy of the next byte."""
    (windows,) = data
    scores, targets = model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()  # (batch * position, 256), (...)
    accuracy = (scores.argmax(dim=1) == targets).float().mean()
    return Output(loss=F.cross_entropy(scores, targets), metrics={"accuracy": accuracy})
