"""Equal steps from unequal streams: ranks look ahead, and tell each other how many samples each has for the next steps.

Every rank gives the same number of steps and knows the samples of each step over all ranks, also where its own stream
is over; then its data is a batch cut to nothing. One small exchange serves `lookahead` steps.

    for piece, global_samples in agreed_steps(pieces, collectives, lookahead=8):
        piece.data, piece.samples, global_samples
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from hvdtrain.collectives import Collectives
from hvdtrain.data.batch import cut
from hvdtrain.errors import ConfigError


class Piece(NamedTuple):
    """What one rank has for one step: collated data of so many samples."""

    data: Any
    samples: int


class AgreedStep(NamedTuple):
    """One step of one rank.

    Attributes:
        piece: this rank's data, perhaps of no samples.
        global_samples: over all ranks.
        last: whether no rank has anything after it.
    """

    piece: Piece
    global_samples: int
    last: bool


def agreed_steps(pieces: Iterator[Piece], collectives: Collectives, *, lookahead: int) -> Iterator[AgreedStep]:
    """Collective: the steps of this rank, as many as the longest stream of any rank has pieces.

    Args:
        pieces: this rank's stream; none of its pieces is empty.
        collectives: of the job.
        lookahead: steps per exchange, and so pieces held in memory; the same on all ranks.

    Raises:
        ConfigError: on every rank, where one has nothing at all while others have.
    """
    nothing: Piece | None = None
    held = list(islice(pieces, lookahead + 1))  # one more than is given now, to know whether anything follows
    while True:
        everyone = collectives.gather_json([piece.samples for piece in held], "hvdtrain.data.agreement")
        # everyone: (size, pieces held)
        if nothing is None:
            _check_all_have_something(everyone)
            if not held:
                return  # nobody has anything
            nothing = Piece(cut(held[0].data, held[0].samples, range(0)), 0)
        steps = max(map(len, everyone))
        for step in range(min(steps, lookahead)):
            piece = held[step] if step < len(held) else nothing
            total = sum(counts[step] for counts in everyone if step < len(counts))
            yield AgreedStep(piece, total, last=step == steps - 1)
        if steps <= lookahead:
            return
        held = held[lookahead:]
        held += islice(pieces, lookahead + 1 - len(held))


def _check_all_have_something(everyone: list[list[int]]) -> None:
    without = [rank for rank, counts in enumerate(everyone) if not counts]
    if without and len(without) < len(everyone):
        raise ConfigError(
            f"read a stream on {len(everyone)} ranks",
            found=f"nothing to read for rank {', '.join(map(str, without))}",
            remedy="fewer ranks, or more and smaller shards",
            agreed=True,
        )
