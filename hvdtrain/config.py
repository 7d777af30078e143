"""The configuration of a run: one tree of frozen dataclasses, saved whole in every run directory and checkpoint.

Each field is an option, `--section.field value`, with the text under it as its help; the same names are used in a YAML
file. Later sources win: defaults, the recipe's own defaults, on resume the saved configuration, the file, the command
line. This module is plain data and its rules; `hvdtrain.cli.settings` reads files and command lines into it.

    config = Config(train=TrainConfig(epochs=3))
    replaced = overlay(config, {"train.seed": 7, "optimizer.lr": 0.1})
    flatten(replaced)["train.seed"]                       # 7
    faults(replaced)                                      # [] or one sentence for each impossible setting
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal


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

    strategy: Literal["allreduce", "shared_memory", "local_sgd", "parameter_server"] = "allreduce"
    """allreduce: Horovod's DistributedOptimizer; shared_memory: two-level, for CPU nodes under MPI; local_sgd: steps of
    each rank's own and then an average of parameters; parameter_server: owners of parameters update them for all."""
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


def flatten(config: Config) -> dict[str, Any]:
    """Every setting by its dotted name, such as ``{"train.epochs": 10, ...}``."""
    return {f"{section}.{name}": value for section, part in asdict(config).items() for name, value in part.items()}


def overlay(config: Config, settings: Mapping[str, Any]) -> Config:
    """A copy of `config` with some settings, given by dotted name, replaced; the names must exist."""
    for key, value in settings.items():
        section, name = key.split(".", 1)
        part = getattr(config, section)
        value = tuple(value) if isinstance(getattr(part, name), tuple) else value
        config = replace(config, **{section: replace(part, **{name: value})})
    return config


def unflatten(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Dotted names to the nested form of a YAML file: ``{"train": {"epochs": 10}}``."""
    tree: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, name = key.split(".", 1)
        tree.setdefault(section, {})[name] = list(value) if isinstance(value, tuple) else value
    return tree


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by dotted name, as (saved, now); names that only one side knows are left out."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in now.items()}
    return {key: (saved[key], plain[key]) for key in saved if key in plain and saved[key] != plain[key]}


def _positive(value: Any) -> bool:
    return bool(value is None or value > 0)


def _not_negative(value: Any) -> bool:
    return bool(value is None or value >= 0)


def _fraction(value: Any) -> bool:
    return bool(0 <= value <= 1)


def _fraction_or_none(value: Any) -> bool:
    return bool(value is None or 0 <= value <= 1)


def _below_one(value: Any) -> bool:
    return bool(0 <= value < 1)


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        [
            "train.steps",
            "train.global_batch_size",
            "train.microbatches",
            "train.log_every",
            "optimizer.clip_norm",
            "watchdog.stall_s",
            "watchdog.start_s",
            "sentinel.every_steps",
            "optimizer.clip_value",
            "sync.bucket_bytes",
            "sync.powersgd_rank",
            "sync.local_steps",
            "sync.outer_lr",
            "checkpoint.every_steps",
            "checkpoint.every_epochs",
            "checkpoint.keep",
            "checkpoint.keep_every",
            "stop.time_limit_s",
        ],
        (_positive, "must be greater than 0"),
    ),
    **dict.fromkeys(
        [
            "train.epochs",
            "train.seed",
            "train.eval_every_epochs",
            "optimizer.lr",
            "optimizer.weight_decay",
            "schedule.warmup_steps",
            "sync.servers",
            "sync.staleness",
            "data.num_workers",
            "stop.grace_s",
            "stop.margin_s",
        ],
        (_not_negative, "must be 0 or greater"),
    ),
    "train.ema_decay": (_fraction_or_none, "must be between 0 and 1"),
    "schedule.final_fraction": (_fraction, "must be between 0 and 1"),
    **dict.fromkeys(
        ["optimizer.momentum", "optimizer.beta1", "optimizer.beta2", "sync.outer_momentum"],
        (_below_one, "must be in [0, 1)"),
    ),
}


def faults_of(settings: Mapping[str, Any]) -> list[str]:
    """One sentence for each of some settings, by dotted name, that no run can have."""
    judged = [(name, value, *RULES[name]) for name, value in settings.items() if name in RULES]
    return [f"{name} {says}: {value}" for name, value, holds, says in judged if not holds(value)]


def faults(config: Config) -> list[str]:
    """One sentence for each setting, or pair of settings, that no run can have; empty when all is well."""
    found = faults_of(flatten(config))
    optimizer = config.optimizer
    if optimizer.nesterov and not optimizer.momentum:
        found.append("optimizer.nesterov needs optimizer.momentum greater than 0: 0.0")
    if config.train.ema_decay is not None and config.sync.strategy == "local_sgd":
        found.append("train.ema_decay needs parameters that are equal after each step, and local_sgd has others: null")
    return found


def ignored(config: Config, given: Collection[str]) -> list[str]:
    """One sentence for each setting, among those given by dotted name, that has no effect in `config`."""
    train, optimizer, schedule = config.train, config.optimizer, config.schedule
    by_name = f"optimizer.name is {optimizer.name}"
    reasons = {
        "train.epochs": (train.steps is not None, f"train.steps {train.steps} wins"),
        "optimizer.momentum": (optimizer.name != "sgd", by_name),
        "optimizer.nesterov": (optimizer.name != "sgd", by_name),
        "optimizer.beta1": (optimizer.name == "sgd", by_name),
        "optimizer.beta2": (optimizer.name == "sgd", by_name),
        "schedule.final_fraction": (schedule.name == "constant", "schedule.name is constant"),
        "sync.bucket_bytes": (not config.sync.deterministic, "sync.deterministic is false"),
        **{
            f"sync.{name}": (config.sync.strategy != "local_sgd", f"sync.strategy is {config.sync.strategy}")
            for name in ("local_steps", "outer_momentum", "outer_lr", "outer_nesterov")
        },
        **{
            f"sync.{name}": (config.sync.strategy != "parameter_server", f"sync.strategy is {config.sync.strategy}")
            for name in ("servers", "asynchronous", "staleness")
        },
        "sync.deterministic": (config.sync.asynchronous, "updates that wait for nobody differ from run to run"),
        **{
            f"sync.powersgd_{name}": (config.sync.compression != "powersgd", "sync.compression is not powersgd")
            for name in ("rank", "warm_start", "error_feedback")
        },
        "checkpoint.every_epochs": (config.checkpoint.every_steps is not None, "checkpoint.every_steps wins"),
    }
    return [f"{name} is ignored: {why}" for name, (holds, why) in reasons.items() if holds and name in given]
