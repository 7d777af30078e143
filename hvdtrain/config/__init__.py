"""The configuration of a run: one tree of frozen dataclasses, saved whole in every run directory and checkpoint.

Each field is an option, `--section.field value`, with the text under it as its help; the same names are used in a YAML
file. Later sources win: defaults, the recipe's own defaults, on resume the saved configuration, the file, the command
line. This room is plain data and its rules; `hvdtrain.cli.settings` reads files and command lines into it.

    config = Config(train=TrainConfig(epochs=3))
    replaced = overlay(config, {"train.seed": 7, "optimizer.lr": 0.1})
    flatten(replaced)["train.seed"]                       # 7
    faults(replaced)                                      # [] or one sentence for each impossible setting
"""

from hvdtrain.config.names import differences, flatten, overlay, unflatten
from hvdtrain.config.rules import RULES, faults, faults_of, ignored
from hvdtrain.config.sections import (
    IDENTITY,
    SECTIONS,
    CheckpointConfig,
    Config,
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    SentinelConfig,
    StopConfig,
    SyncConfig,
    TrainConfig,
    WatchdogConfig,
)

__all__ = [
    "IDENTITY",
    "RULES",
    "SECTIONS",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "SentinelConfig",
    "StopConfig",
    "SyncConfig",
    "TrainConfig",
    "WatchdogConfig",
    "differences",
    "faults",
    "faults_of",
    "flatten",
    "ignored",
    "overlay",
    "unflatten",
]
