"""What no run can have, and what will have no effect: one sentence each, and all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from hvdtrain.config.names import flatten
from hvdtrain.config.sections import Config


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
