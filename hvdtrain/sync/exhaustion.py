"""Ranks with unequal numbers of batches: who has none left takes part with zeros until the last one is exhausted.

A rank cannot know how many batches the others have, so all of them go on exchanging until the signal says that none had
any. Zeros of weight zero change no average, so the result is that of one process on the samples that there were.

    for x, y in together(my_own_loader, sync):
        sync.backward(loss(model(x), y), samples=len(x))
        sync.update()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hvdtrain.sync.contract import GradientSync

T = TypeVar("T")


def together(
    batches: Iterable[T], sync: GradientSync, *, stop_asked: Callable[[], bool] = lambda: False
) -> Iterator[T]:
    """Collective: this rank's batches, for each of which the caller makes one step, and then empty steps.

    Args:
        batches: of this rank; ranks may have different numbers of them, also none.
        sync: with which the caller makes its steps.
        stop_asked: whether this rank was asked to stop, for its empty steps. They end when a stop was agreed, as the
            caller's own steps should.
    """
    yield from batches
    while True:
        result = sync.update(has_data=False, stop=stop_asked())
        if result.stop or not result.has_data:
            return
