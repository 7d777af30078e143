"""The loop and its parts: `trainer` runs it; it knows neither Horovod nor MPI, only the contracts below it."""

from hvdtrain.train.trainer import Output, Trainer

__all__ = ["Output", "Trainer"]
