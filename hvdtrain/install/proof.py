"""The proof that an installation works: two ranks under its own mpirun add their numbers with Horovod.

Where two GPUs can be seen and Horovod was built with NCCL, the sum goes over them, otherwise over MPI on the CPU.

    subprocess.run(argv(sys.executable, mpi), env=os.environ | environment(user_id=os.getuid()), timeout=LIMIT_S)
    # horovod 0.28.1 proved: 2 ranks, sum 3.0, on cpu
"""

from __future__ import annotations

from hvdtrain.install.facts import Mpi

LIMIT_S = 180.0  # the first import of torch from a cold network disk takes most of it

PROGRAM = """\
import sys, horovod, torch, horovod.torch as hvd
hvd.init()
gpu = hvd.nccl_built() and torch.cuda.device_count() > 1
device = f"cuda:{hvd.local_rank()}" if gpu else "cpu"
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0], device=device), op=hvd.Sum).item()
if hvd.rank() == 0:
    print(f"horovod {horovod.__version__} proved: {hvd.size()} ranks, sum {total}, on {device}", flush=True)
status = 0 if (hvd.size(), total) == (2, 3.0) else 1
hvd.shutdown()
sys.exit(status)
"""

# Open MPI's defaults bind a rank to one core and let a waiting rank spin
OPEN_MPI_FLAGS = ("--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")


def argv(python: str, mpi: Mpi) -> tuple[str, ...]:
    """The command line."""
    flags = OPEN_MPI_FLAGS if mpi.library == "Open MPI" else ()
    return (f"{mpi.bin}/mpirun", *flags, "-np", "2", python, "-c", PROGRAM)


def environment(*, user_id: int) -> dict[str, str]:
    """What Open MPI 4 and 5 want from root before they start anything."""
    if user_id != 0:
        return {}
    words = ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")
    return {f"{library}_{word}": "1" for library in ("OMPI", "PRTE") for word in words}
