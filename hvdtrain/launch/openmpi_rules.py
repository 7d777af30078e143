"""Which all-reduce Open MPI is to take between hosts: a ring for large buffers, whatever the number of ranks.

By itself it takes Rabenseifner's algorithm, in which pairs of ranks exchange parts of the buffer. Where ranks are no
power of two, two more buffers travel, and over TCP a pair's two directions slow each other down; in a ring each rank
sends to one neighbour and receives from another. It takes 2 (size - 1) messages, so small buffers stay with Open MPI.

    with ring_between_hosts(os.environ, promise):
        hvd.init()                                 # MPI reads the rules when it starts

Sources: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations; Open MPI 4.1 and
5.0 for the format of `coll_tuned_dynamic_rules_filename`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from hvdtrain.topology import Promise

MESSAGE_BYTES = 2**18  # of a ring, from which on it is taken
SIZES = range(3, 33)  # numbers of ranks; two are a pair in any algorithm, and for more a ring gets long
USE = "OMPI_MCA_coll_tuned_use_dynamic_rules"
FILE = "OMPI_MCA_coll_tuned_dynamic_rules_filename"

_ALLREDUCE, _RING, _OPEN_MPIS_OWN = 2, 4, 0  # as Open MPI numbers them


def takes_ring(size: int, nbytes: float) -> bool:
    """Whether an all-reduce of so many bytes goes around a ring."""
    return size in SIZES and nbytes >= size * MESSAGE_BYTES


def rules() -> str:
    """The rules for Open MPI: for each number of ranks, from how many bytes on it takes which algorithm."""
    own = f"0 {_OPEN_MPIS_OWN} 0 0"
    lines = ["1", str(_ALLREDUCE), str(len(SIZES) + 1)]
    for size in SIZES:
        lines += [str(size), "2", own, f"{size * MESSAGE_BYTES} {_RING} 0 0"]
    return "\n".join([*lines, str(SIZES.stop), "1", own, ""])


@contextmanager
def ring_between_hosts(env: MutableMapping[str, str], promise: Promise | None) -> Iterator[None]:
    """Have an MPI that starts in this context follow the rules, if ranks are on several hosts.

    The user's own rules stay, and on one host Open MPI decides.
    """
    size, local_size = (promise.size, promise.local_size) if promise else (None, None)
    if USE in env or size is None or local_size is None or size == local_size:
        yield
        return
    descriptor = os.memfd_create("hvdtrain-openmpi-rules")
    try:
        os.write(descriptor, rules().encode())
        env.update({USE: "1", FILE: f"/proc/self/fd/{descriptor}"})
        yield
    finally:
        os.close(descriptor)
        for name in (USE, FILE):
            env.pop(name, None)
