"""One entry of a checkpoint in several files, so that several cores hash, write and read it at the same time.

A large entry is cut between tensors into files of about equal length, named as the field names shards. How many there
are follows from their names; which tensors each of them must hold follows from that number and from `state.json`.

    parts = cut(leaves, count_for(leaves))                  # [[leaf, leaf], [leaf]], in the order of the file
    file_name("model", 0, len(parts))                       # "model-00001-of-00002.safetensors"
    with threads(total_bytes=1 << 30) as pool:
        futures = [pool.submit(write, part) for part in parts]

Source of the names: https://huggingface.co/docs/transformers/big_models
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from hvdtrain.checkpoint.tensorfile import layout, nbytes
from hvdtrain.statetree import Leaf

PART_BYTES = 64 << 20  # no shorter on average: a thread then has work for some 60 ms
MOST_PARTS = 32  # so that a directory stays readable
MOST_THREADS = 8  # more of them only take cores from the training


def file_name(entry: str, number: int, count: int) -> str:
    """The name of one of the files of an entry; `number` counts from zero."""
    return f"{entry}.safetensors" if count == 1 else f"{entry}-{number + 1:05}-of-{count:05}.safetensors"


def entry_of(file: str) -> str:
    """The entry that a file of this name belongs to: `file_name` backwards."""
    return file.partition(".")[0].partition("-")[0]


def count_for(leaves: Sequence[Leaf]) -> int:
    """How many files to write: one for small entries, and never one without a tensor."""
    wanted = min(MOST_PARTS, max(1, sum(map(nbytes, leaves)) // PART_BYTES))
    return next((count for count in range(wanted, 1, -1) if all(cut(leaves, count))), 1)


def cut(leaves: Iterable[Leaf], count: int) -> list[list[Leaf]]:
    """Tensors in the order of one file, cut into `count` runs of about equal bytes.

    A tensor belongs where its middle lies, so a run is empty where one tensor is longer than a run.
    """
    ordered = layout(leaves)
    total, start = max(1, sum(map(nbytes, ordered))), 0
    runs: list[list[Leaf]] = [[] for _ in range(count)]
    for leaf in ordered:
        middle = 2 * start + nbytes(leaf)  # in half bytes, so that it is a whole number
        runs[min(count - 1, middle * count // (2 * total))].append(leaf)
        start += nbytes(leaf)
    return runs


@contextmanager
def threads(total_bytes: int) -> Iterator[Executor]:
    """Threads for so many bytes of work, one where it is little; on leaving, none runs and nothing more begins.

    They gain where hashing, comparing and system calls leave the interpreter to others, as those of large rows do.
    """
    count = min(MOST_THREADS, max(2, len(os.sched_getaffinity(0))), 1 + total_bytes // PART_BYTES)
    pool = ThreadPoolExecutor(count, "hvdtrain-checkpoint")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
