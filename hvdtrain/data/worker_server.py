"""Imported by the fork server alone, before it forks any worker: importing this binds the process to its parent.

The server dies with its rank, workers forked from it start with torch loaded, and an `import mpi4py.MPI` in a worker
(by the user's main module, say) does not start MPI a second time. Nothing else may import this module.
"""

from __future__ import annotations

from hvdtrain.data.lifeline import die_with_parent, keep_mpi_off

die_with_parent()
keep_mpi_off()

import torch.utils.data  # noqa: E402, F401  (last: it takes a second, in which the rank may die)
