"""Settings from command lines and files: every fault is found, and all are shown in one message.

words, settings = split_settings(["digits", "--train.epochs", "3"])        # ["digits"], [("--train.epochs", "3")]
chosen = read_settings(settings, file=None)                                # {"train.epochs": 3}
config = build(overlay(Config(), chosen))                                  # ConfigError, or the configuration
"""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from hvdtrain.config import SECTIONS, Config, faults, faults_of, flatten
from hvdtrain.errors import ConfigError

Setting: TypeAlias = tuple[str, str | None]  # name and text, as typed

NAMES = tuple(flatten(Config()))


def settings_parser() -> ArgumentParser:
    """A new parser of all settings, with the help under each field of `hvdtrain.config`."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(prog="hvdtrain run", exit_on_error=False, usage="hvdtrain run RECIPE|FILE.py [options]")
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)
    for action in parser._actions:
        if action.dest in SECTIONS:
            action.help = SUPPRESS  # a file for one section alone: --config reads all of them
    return parser


_converter = cache(settings_parser)  # one for all values


def split_settings(words: Sequence[str]) -> tuple[list[str], list[Setting]]:
    """Take the settings, ``--section.field value`` or ``--section.field=value``, out of a command line."""
    rest: list[str] = []
    settings: list[Setting] = []
    pending = iter(words)
    for word in pending:
        name, _, value = word.partition("=")
        if not (name.startswith("--") and "." in name):
            rest.append(word)
        elif "=" in word:
            settings.append((name, value))
        else:
            settings.append((name, next(pending, None)))
    return rest, settings


def read_settings(
    settings: Iterable[Setting], file: Path | None, *, tuned: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values of a profile's, a file's and a command line's settings by dotted name; the later ones win.

    Raises:
        ConfigError: with every fault of both.
    """
    found: list[str] = []
    values: dict[str, Any] = {}
    for name, value in (tuned or {}).items():
        _convert_named(name, value, values, found, where="--profile: ")
    values |= _read_file(file, found) if file else {}
    for option, text in settings:
        name = option.removeprefix("--")
        if name not in NAMES:
            found.append(f"{option} is not a setting{nearest(name, NAMES)}")
        elif text is None:
            found.append(f"{option} has no value")
        else:
            _convert([f"--{name}={text}"], name, text, values, found)
    _refuse(found + faults_of(values))
    return values


def _read_file(path: Path, found: list[str]) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        found.append(f"--config {path} cannot be read: {' '.join(str(error).split())}")
        return {}
    values: dict[str, Any] = {}
    for name, value in _leaves(tree):
        _convert_named(name, value, values, found, where=f"{path}: ")
    return values


def _convert_named(name: str, value: Any, values: dict[str, Any], found: list[str], *, where: str) -> None:
    """Put one setting of a file among `values`, or its fault among `found`."""
    if name not in NAMES:
        found.append(f"{where}{name} is not a setting{nearest(name, NAMES)}")
    else:
        section, field = name.split(".")
        _convert({section: {field: value}}, name, value, values, found, where=where)


def _leaves(tree: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(tree, dict):
        return [(str(tree), None)]
    pairs: list[tuple[str, Any]] = []
    for section, fields in tree.items():
        if isinstance(fields, dict):
            pairs.extend((f"{section}.{name}", value) for name, value in fields.items())
        else:
            pairs.append((str(section), fields))
    return pairs


def _convert(
    given: list[str] | dict[str, Any],
    name: str,
    text: Any,
    values: dict[str, Any],
    found: list[str],
    where: str = "",
) -> None:
    """Put the value of one setting among `values`, or the fault in it among `found`."""
    parser = _converter()
    try:
        parsed = parser.parse_args(given) if isinstance(given, list) else parser.parse_object(given)
    except Exception as error:  # jsonargparse raises ArgumentError, TypeError and ValueError alike
        expected = str(error).partition("Expected a ")[2].partition(". Got value")[0] or str(error)
        found.append(f"{where}{name} is {text!r}, which is not of type {_plain(expected)}")
    else:
        values[name] = parsed[name]


def _plain(expected: str) -> str:
    return expected.replace("<class '", "").replace("'>", "").replace("typing.", "")


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a message about a misspelled name."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    last = [candidate for candidate in known if candidate.rpartition(".")[2] == name.rpartition(".")[2]]
    best = (last or near)[:1]
    return f" (nearest: {best[0]})" if best else ""


def check(config: Config) -> None:
    """Refuse a configuration that no run can have.

    Raises:
        ConfigError: with every fault.
    """
    _refuse(faults(config))


def _refuse(found: Sequence[str]) -> None:
    if found:
        raise ConfigError(
            "train with these settings",
            found=found[0] if len(found) == 1 else f"{len(found)} faults" + "".join(f"\n    - {one}" for one in found),
            remedy="hvdtrain run --help   (all settings), or --print_config (those of this run)",
        )


def to_yaml(settings: Mapping[str, Any]) -> str:
    """A configuration's sections as the text of a file for `--config`."""
    return str(yaml.safe_dump(dict(settings), sort_keys=False))
