"""A loop of one's own, watched, in which the last rank has one batch fewer than the others.

mpirun -np 2 python tests/faults/unequal_loop.py RUN_DIR MARK
"""

import sys
from pathlib import Path

import torch
from torch import nn

import hvdtrain

with hvdtrain.init(seed=1) as run:
    hvdtrain.watch(run, Path(sys.argv[1]))
    model = nn.Linear(8, 1)
    sync = hvdtrain.prepare(run, model, torch.optim.SGD(model.parameters(), lr=0.01))
    last = run.topology.rank == run.topology.size - 1
    mine = [torch.randn(4, 8) for _ in range(5 - last)]
    for x in hvdtrain.together(mine, sync):
        sync.backward(model(x).pow(2).mean(), samples=len(x))
        sync.update()
    steps = run.collectives.gather_json([len(mine), sync.state_dict()["steps"]])
    if last:
        Path(sys.argv[2]).write_text(repr(steps))
