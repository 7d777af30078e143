"""One rank of doctor's trial: all add their numbers, and each measures what Horovod costs a computation.

Run by its path under a launcher, so that it needs no hvdtrain. The computation is timed while Horovod waits for work,
and again after it was shut down, when all ranks are as busy as before.

    mpirun -np 2 python -P trial_rank.py
    # {"trial": {"rank": 0, "size": 2, "sum": 3.0, "init_s": 0.3, "with_horovod_ms": 1.1, "alone_ms": 1.0}}
"""

from __future__ import annotations

import json
import os
import statistics
import time

REPEATS = 60
WIDTH = 256  # a product of two matrices of this width takes about a millisecond
ELEMENTS = 2**18  # 1 MiB, past what is sent eagerly


def computation_ms() -> float:
    """The median time of a computation on this rank's own thread."""
    import torch

    a, times = torch.rand(WIDTH, WIDTH), []
    for _ in range(REPEATS):
        start = time.perf_counter()
        a @ a
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    """Run the rank and print its report as one line."""
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    computation_ms()  # warm
    start = time.perf_counter()
    hvd.init()
    init_s = time.perf_counter() - start
    rank, size = hvd.rank(), hvd.size()
    device = f"cuda:{hvd.local_rank()}" if hvd.nccl_built() and torch.cuda.device_count() >= hvd.local_size() else "cpu"
    total = hvd.allreduce(torch.full((ELEMENTS,), rank + 1.0, device=device), op=hvd.Sum)
    value = total[0].item() if bool((total == total[0]).all()) else float("nan")
    with_horovod_ms = computation_ms()
    hvd.shutdown()
    report = {"rank": rank, "size": size, "sum": value, "init_s": init_s, "with_horovod_ms": with_horovod_ms}
    line = json.dumps({"trial": report | {"alone_ms": computation_ms()}})
    os.write(1, f"{line}\n".encode())  # at once, so that lines of ranks are not mixed


if __name__ == "__main__":
    main()
