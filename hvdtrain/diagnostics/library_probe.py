"""A process of its own that imports torch and Horovod, or mpi4py, and says what came of it: a crash is an answer, too.

Run by its path, so that it needs no hvdtrain. It prints one JSON object for each thing it has learned, in order.

    subprocess.run([sys.executable, "-P", __file__, "horovod"])
    # {"torch": "2.13.0", "gpus": 0}
    # {"controllers": ["mpi", "gloo"], "nccl": false}
    subprocess.run([sys.executable, "-P", __file__, "mpi4py"])         # {"mpi4py_mpi": "Open MPI v5.0.11, ..."}
"""

from __future__ import annotations

import json
import sys


def say(**learned: object) -> None:
    """Print what was learned, before anything else can crash."""
    print(json.dumps(learned), flush=True)


def horovod() -> None:
    """Import torch, then Horovod, which is not started."""
    import torch

    say(gpus=torch.cuda.device_count())
    import horovod.torch as hvd

    built = [name for name, there in (("mpi", hvd.mpi_built()), ("gloo", hvd.gloo_built())) if there]
    say(controllers=built, nccl=bool(hvd.nccl_built()))


def mpi4py() -> None:
    """Import mpi4py without starting MPI, and ask whose it is."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    say(mpi4py_mpi=MPI.Get_library_version().strip("\0"))


if __name__ == "__main__":
    {"horovod": horovod, "mpi4py": mpi4py}[sys.argv[1]]()
