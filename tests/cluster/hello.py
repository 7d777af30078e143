"""A plain mpi4py program: each rank says who and where it is, and what it got; they exchange some megabytes."""

import os
import socket
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
facts = {
    "rank": world.rank,
    "size": world.size,
    "host": socket.gethostname(),
    "cores": len(os.sched_getaffinity(0)),
    "variables": {name: os.environ[name] for name in sys.argv[2:] if name in os.environ},
    "library": MPI.Get_library_version().split("\n")[0],
}
payload = bytearray(int(sys.argv[1]))
world.Bcast(payload, root=0)
gathered = world.gather(facts)
if world.rank == 0:
    import json

    print("FACTS " + json.dumps(gathered), flush=True)
