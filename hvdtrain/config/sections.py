"""The sections of a configuration: frozen dataclasses, each field with its help below it.

A new setting is a field here, and a rule in `hvdtrain.config.rules` where some values are impossible.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long to train, on how much at a time, and what to say meanwhile."""

    epochs: int = 10
    """Passes over the training data; ignored when train.steps is given."""
    steps: int | None = None
    """Optimizer updates in all; wins over train.epochs."""
    global_batch_size: int = 64
    """Samples per step over all ranks together, whatever their number."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of forward and backward: bf16 and fp16 by autocast, fp16 with scaled losses; parameters stay fp32."""
    ema_decay: float | None = None
    """Evaluate with a moving average of the parameters, of this decay per step; without it, with the last ones."""
    microbatches: int = 1
    """Backward passes that a step's share is cut into, to save memory; the result is the same."""
    seed: int = 0
    """Decides initial weights, sample order and augmentation."""
    log_every: int = 10
    """Steps per record in metrics.jsonl and on the console."""
    eval_every_epochs: int = 1
    """Epochs between evaluations; the last state is always evaluated; 0 evaluates only then."""
    nonfinite: Literal["fail", "skip"] = "fail"
    """When a loss or gradient is infinite or not a number: end the job on all ranks, or leave the step out."""
    progress: bool = True
    """Show a progress bar when the output is a terminal."""
    tensorboard: bool = False
    """Write TensorBoard files into the run directory as well (extra: tensorboard)."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and what is done to gradients before it."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """Which torch.optim class."""
    lr: float = 0.05
    """Peak learning rate, before schedule.scale_by_size."""
    momentum: float = 0.0
    """Momentum (sgd only)."""
    nesterov: bool = False
    """Nesterov momentum (sgd only)."""
    beta1: float = 0.9
    """Decay of the first moment (adam, adamw)."""
    beta2: float = 0.999
    """Decay of the second moment (adam, adamw)."""
    weight_decay: float = 0.0
    """L2 penalty (sgd, adam) or decoupled decay (adamw)."""
    clip_norm: float | None = None
    """Largest 2-norm of the averaged gradient; longer ones are scaled down to it."""
    clip_value: float | None = None
    """Largest magnitude of one element of the averaged gradient."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the steps."""

    name: Literal["constant", "cosine", "linear"] = "cosine"
    """Shape after warm-up; cosine and linear go to schedule.final_fraction of the peak at the last step."""
    warmup_steps: int = 0
    """Steps of linear rise from zero to the peak."""
    final_fraction: float = 0.0
    """Learning rate at the end, as a fraction of the peak."""
    scale_by_size: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the peak by size or its square root; only sensible when global_batch_size was scaled likewise."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Order and loading of samples."""

    shuffle: bool = True
    """A new order each epoch, the same on any number of ranks; else the order of the data set."""
    remainder: Literal["keep", "drop", "pad"] = "keep"
    """When the batch does not divide the epoch: a smaller last step, none, or samples from its start again."""
    num_workers: int = 0
    """Processes per rank that load and augment samples; 0 loads in the rank itself."""
    ledger: bool = False
    """Record which samples each committed step used, for `hvdtrain audit`."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """The gradient exchange."""

    strategy: Literal["allreduce", "shared_memory", "local_sgd", "parameter_server", "auto"] = "allreduce"
    """allreduce: Horovod's DistributedOptimizer; shared_memory: two-level, for CPU nodes under MPI; local_sgd: steps of
    each rank's own and then an average of parameters; parameter_server: owners of parameters update them for all;
    auto: the faster of the first two for the hosts and ranks at hand."""
    operation: Literal["average", "sum", "adasum"] = "average"
    """average: mean over the samples of all ranks; sum: their sum; adasum: what ranks agree on is averaged, what is
    orthogonal is added (sizes that are powers of two)."""
    compression: Literal["none", "fp16", "powersgd"] = "none"
    """What travels: gradients as they are, as fp16, or as low-rank factors (for slow links)."""
    powersgd_rank: int = 4
    """Rank of the factors: more is closer to the gradient, and more to send."""
    powersgd_warm_start: bool = True
    """Begin each step's factors with the last one's; else with random ones."""
    powersgd_error_feedback: bool = True
    """Add what the factors missed to the next step's gradient."""
    asynchronous: bool = False
    """Update as gradients come, instead of waiting for all of them (parameter_server)."""
    staleness: int = 2
    """Steps that a rank may be ahead of the slowest one (parameter_server, asynchronous)."""
    servers: int = 0
    """Ranks that are servers and nothing else, the last ones; 0: every rank is one beside its worker
    (parameter_server)."""
    local_steps: int = 8
    """Steps of each rank between two averages (local_sgd)."""
    outer_momentum: float = 0.0
    """Momentum of the moves between averages (local_sgd): SlowMo; 0 takes the averages as they are."""
    outer_lr: float = 1.0
    """Factor of the moves between averages (local_sgd)."""
    outer_nesterov: bool = False
    """Look ahead with the outer momentum, as DiLoCo does (local_sgd)."""
    deterministic: bool = True
    """Exchange fixed groups of gradients, so that the bits of the sums do not depend on timing."""
    bucket_bytes: int = 8 * 2**20
    """Size at which a group of gradients is sent while backward goes on, in bytes."""
    overlap: bool = True
    """Send gradients while backward goes on; off for graphs that reach a parameter in several backward passes."""
    batchnorm: Literal["local", "sync"] = "local"
    """BatchNorm over each rank's own samples, or over those of all ranks (SyncBatchNorm)."""
    sparse: Literal["gather", "dense"] = "gather"
    """Sparse gradients of embeddings: gather the rows of all ranks, or sum them as dense ones."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save, and what to keep."""

    every_steps: int | None = None
    """Steps between checkpoints."""
    every_epochs: int | None = 1
    """Epochs between checkpoints; ignored when checkpoint.every_steps is given. The end is always saved."""
    keep: int = 3
    """Newest checkpoints to keep."""
    keep_every: int | None = None
    """Keep each checkpoint whose step is a multiple of this as well."""
    best: str | None = None
    """Keep the best by this evaluation metric as well: a name for the highest, -name for the lowest."""
    asynchronous: bool = True
    """Write in the background; steps wait only for a copy of the state."""
    on_error: Literal["warn", "fail"] = "warn"
    """When a checkpoint cannot be written (disk full): go on with the previous one, or stop."""


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """When to save and stop early, with exit status 75."""

    signals: tuple[str, ...] = ("SIGUSR1", "SIGUSR2", "SIGTERM")
    """Signals that ask for a checkpoint and an end; one to any rank is enough."""
    time_limit_s: float | None = None
    """Seconds after which to stop; without it, the limit of the SLURM job when there is one."""
    margin_s: float = 30.0
    """Seconds to leave before the limit, beside twice the measured cost of a save."""
    grace_s: float = 60.0
    """A second signal within this time after the first ends the process at once."""


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig:
    """When a job that makes no progress is ended."""

    stall_s: float | None = 300.0
    """Seconds without progress on any rank after which the job is aborted with a report; none never does."""
    start_s: float = 900.0
    """The same until the first step of this process is done: building models and caches may take longer than a step."""
    usual_steps: float = 20.0
    """And at least so many times the usual time of a step, where steps are long."""


@dataclass(frozen=True, kw_only=True)
class SentinelConfig:
    """How it is made sure that ranks still hold the same model."""

    every_steps: int | None = 100
    """Steps between comparisons of parameters, buffers and optimizer state across ranks."""
    policy: Literal["fail", "repair"] = "fail"
    """When a rank differs: end the job, or give it the values of the majority (of root, where there is none)."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run; see each section's class."""

    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    data: DataConfig = field(default_factory=DataConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    sentinel: SentinelConfig = field(default_factory=SentinelConfig)


SECTIONS: dict[str, type] = {part.name: part.default_factory for part in fields(Config)}  # type: ignore[misc]

# A change of one of these makes it another run: refused on resume unless named with --allow-change.
IDENTITY = (
    "train.seed",
    "train.global_batch_size",
    "data.shuffle",
    "data.remainder",
    *(f"optimizer.{part.name}" for part in fields(OptimizerConfig)),
)
