"""Metrics: accumulators that merge, one reduction for all of them, and writers of records.

window = include(window, {"loss": 0.31, "accuracy": 0.9}, samples=64)
compute(window)                                       # {"loss": 0.31, "accuracy": 0.9}
compute(reduce(window, run.collectives))              # over all ranks, weighted by their samples
"""

from hvdtrain.metrics.accumulators import Mean, Means, compute, include, reduce

__all__ = ["Mean", "Means", "compute", "include", "reduce"]
