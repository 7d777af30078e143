"""What a rank trains on in one step, and how it is cut along its samples.

A batch counts as used only when it is committed; what was loaded and never committed is loaded again after a resume.

    for batch in loader:
        for data, samples in batch.split(4):          # four microbatches, equal to within one sample; some may be empty
            loss = loss_function(model, data)
            sync.backward(loss, samples, global_samples=batch.global_samples)
        batch.commit()
    batch.indices                                     # the samples that were really collated, int64
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hvdtrain.data.partition import divide
from hvdtrain.data.permutation import Indices
from hvdtrain.errors import ConfigError, OrderError


@dataclass(kw_only=True, eq=False)
class Batch:
    """One rank's part of one step.

    Attributes:
        data: what the collate function made of the samples; along dimension 0 of its tensors, `samples` long.
        samples: samples in `data`; may be 0.
        global_samples: samples of the step over all ranks.
        epoch: the epoch it belongs to.
        start: global position of the step's first sample.
        stop: global position after its last.
        indices: the collated samples, int64 of shape (samples,); None where a source does not number them.
        microbatches: how many pieces `split` makes by default.
    """

    data: Any
    samples: int
    global_samples: int
    epoch: int
    start: int
    stop: int
    indices: Indices | None
    microbatches: int = 1
    on_commit: Callable[[], None] = field(default=lambda: None, repr=False)
    committed: bool = field(default=False, init=False)

    def commit(self) -> None:
        """Say that the update which used this batch was made.

        Raises:
            OrderError: it was committed before, or an earlier batch was not.
        """
        if self.committed:
            raise OrderError(
                f"commit the batch at positions {self.start} to {self.stop} of epoch {self.epoch}",
                found="it is committed already",
                remedy="call batch.commit() once, after the update",
            )
        self.on_commit()
        self.committed = True

    def split(self, parts: int | None = None) -> list[tuple[Any, int]]:
        """Cut the data into exactly `parts` microbatches, as (data, samples); the last ones may be empty.

        Raises:
            ConfigError: fewer than one part.
        """
        parts = self.microbatches if parts is None else parts
        if parts < 1:
            raise ConfigError("split a batch into microbatches", found=f"{parts} parts; at least 1 is possible")
        if parts == 1:
            return [(self.data, self.samples)]
        ranges = [divide(self.samples, rank=part, size=parts) for part in range(parts)]
        return [(cut(self.data, self.samples, part), len(part)) for part in ranges]


def cut(data: Any, samples: int, part: range) -> Any:
    """The same structure with only the samples of `part` in it.

    Tensors and arrays whose first dimension is `samples` long are cut (as views), and lists of so many strings or
    bytes; dicts, tuples, named tuples and lists are walked through; anything else belongs to all samples and is kept.
    """
    if isinstance(data, torch.Tensor | np.ndarray):
        return data[part.start : part.stop] if data.ndim and data.shape[0] == samples else data
    if isinstance(data, Mapping):
        walked = {key: cut(value, samples, part) for key, value in data.items()}
        return walked if type(data) is dict else _same_mapping(data, walked)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(cut(value, samples, part) for value in data))
    if isinstance(data, list | tuple):
        if len(data) == samples and data and all(isinstance(value, str | bytes) for value in data):
            return data[part.start : part.stop]
        return type(data)([cut(value, samples, part) for value in data])
    return data


def _same_mapping(data: Mapping[Any, Any], walked: dict[Any, Any]) -> Any:
    """A mapping of the class of `data`, where it can be made from a dict; else a dict."""
    try:
        return type(data)(walked)  # type: ignore[call-arg]
    except TypeError:
        return walked
