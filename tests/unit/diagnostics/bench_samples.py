"""Numbers for reports, as no machine has measured them."""

from hvdtrain.diagnostics.bench.circumstances import Circumstances

QUIET = Circumstances(
    versions={"hvdtrain": "0.1.0", "torch": "2.13.0", "mpi": "mpirun (Open MPI) 5.0.11"},
    processor="A Processor",
    cores=2,
    load_before=0.1,
    load_after=3.2,
    flags={"OMP_NUM_THREADS": "1"},
    starts=7,
)
WIGGLE = (1.0, 1.02, 0.99, 1.03, 0.98, 1.01, 1.0)


def around(*medians):
    """For each median, seven numbers around it, in the same rhythm."""
    rows = [[round(median * wiggle, 4) for wiggle in WIGGLE] for median in medians]
    return rows[0] if len(rows) == 1 else rows
