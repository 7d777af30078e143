"""Settings by dotted name, such as ``train.epochs``: to and from the tree of sections, and to the form of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from hvdtrain.config.sections import Config


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
