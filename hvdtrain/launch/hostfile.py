"""One parser for every way to write down hosts, and a writer for each dialect.

A line holds hosts in any of the dialects, so nobody has to say which one it is. Whatever the text is, the result is
either a tuple of hosts or one `HostFileError` with every fault as ``file:line: what was found, what is expected``; and
``parse(write(hosts, dialect)) == hosts`` for all that a dialect can say.

    gpu01 slots=4 max_slots=8         # Open MPI
    gpu02:4                           # MPICH, Intel MPI
    gpu03                             # a plain list (and PBS_NODEFILE): one slot each time it is named
    gpu04:2,gpu05:2                   # what horovodrun's -H takes
    gpu[06-09]:4                      # a range
    alice@[fe80::7]:4                 # a user; an IPv6 address in brackets

    parse(text, "hosts.txt")          # (Host(name="gpu01", slots=4, max_slots=8), Host(name="gpu02", slots=4), ...)
    write(hosts, "horovodrun")        # "gpu01:4,gpu02:4,..."
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from hvdtrain.errors import HostFileError
from hvdtrain.launch.spec import Host

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
NUMBER = re.compile(r"[0-9]{1,6}")
RANGE_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
MOST_HOSTS = 100_000  # a range that gives more is a slip of the finger, and would take minutes and gigabytes

EXAMPLES = "`gpu01 slots=4`, `gpu01:4`, `gpu01`, `gpu[01-04]:4` or `gpu01:4,gpu02:4`"


class _Fault(Exception):
    """One thing that is wrong in one line: what was found and what is expected there."""


def read(path: Path) -> tuple[Host, ...]:
    """The hosts in the file at `path`.

    Raises:
        HostFileError: it cannot be read, or not understood.
    """
    try:
        return parse(path.read_bytes().decode(), str(path))
    except (OSError, ValueError) as error:
        raise HostFileError(f"read the hosts in {path}", found=str(error), remedy=f"one of {EXAMPLES} a line") from None


def parse(text: str, source: str) -> tuple[Host, ...]:
    """The hosts in `text`, each once, in the order of their first mention; a host named again adds its slots.

    Raises:
        HostFileError: with every faulty line, called by `source` and number.
    """
    entries: list[Host] = []
    faults: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        try:
            entries.extend(_line(line))
            _check_total(entries)
        except _Fault as fault:
            faults.append(f"{source}:{number}: {fault}")
    if not faults:
        entries, faults = _merged(entries, source)
    if not entries and not faults:
        faults.append(f"{source}:1: no host at all, expected {EXAMPLES}")
    if faults:
        raise HostFileError(f"read the hosts in {source}", found="\n         ".join(faults), remedy=f"write {EXAMPLES}")
    return tuple(entries)


def _check_total(entries: Sequence[Host]) -> None:
    if len(entries) > MOST_HOSTS:
        raise _Fault(f"more than {MOST_HOSTS} hosts, expected fewer")


def _line(line: str) -> Iterator[Host]:
    content = re.sub(r"\s*=\s*", "=", line.partition("#")[0].strip())
    if not content:
        return
    first, *attributes = content.split()
    entries = _split_outside_brackets(first)
    if attributes and len(entries) > 1:
        raise _Fault(f"{content!r}: attributes after several hosts, expected one host before {attributes[0]!r}")
    slots, max_slots = _attributes(attributes)
    for entry in entries:
        yield from _entry(entry, slots, max_slots)


def _split_outside_brackets(text: str) -> list[str]:
    return re.split(r",(?![^\[\]]*\])", text)


def _attributes(words: Sequence[str]) -> tuple[int | None, int | None]:
    values: dict[str, int] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if key not in {"slots", "max_slots"} or not equals or key in values:
            raise _Fault(f"{word!r}, expected `slots=N` or `max_slots=N`, each at most once")
        values[key] = _count(value, word)
    slots, max_slots = values.get("slots"), values.get("max_slots")
    if max_slots is not None and max_slots < (slots or 1):
        raise _Fault(f"max_slots={max_slots}, expected at least the {slots or 1} of slots")
    return slots, max_slots


def _count(text: str, context: str) -> int:
    if not NUMBER.fullmatch(text) or int(text) == 0:
        raise _Fault(f"{context!r}, expected a number of slots from 1 to 999999")
    return int(text)


def _entry(entry: str, slots: int | None, max_slots: int | None) -> Iterator[Host]:
    user, at, rest = entry.rpartition("@")
    if at and not USER.fullmatch(user):
        raise _Fault(f"{entry!r}, expected a user name before the @")
    names, count = _names_and_count(rest, bare_address=slots is not None)
    if count is not None and slots is not None:
        raise _Fault(f"{entry!r} with slots={slots}, expected the number of slots once")
    for name in names:
        yield Host(name=name, slots=slots or count or 1, max_slots=max_slots, user=user or None)


def _names_and_count(text: str, *, bare_address: bool) -> tuple[list[str], int | None]:
    if bracketed := re.fullmatch(r"\[([^\[\]]*:[^\[\]]*)\](?::(.*))?", text):
        address, digits = bracketed.groups()
        return [_address(address)], None if digits is None else _count(digits, text)
    if text.count(":") > 1:
        if not bare_address:
            raise _Fault(f"{text!r}, expected an IPv6 address in brackets: `[fe80::7]:4`")
        return [_address(text)], None
    name, colon, digits = text.partition(":")
    return _expand(name), _count(digits, text) if colon else None


def _address(text: str) -> str:
    try:
        parsed = ipaddress.IPv6Address(text)
    except ValueError:
        raise _Fault(f"{text!r}, expected an IPv6 address") from None
    if parsed.scope_id is not None and not NAME.fullmatch(parsed.scope_id):
        raise _Fault(f"{text!r}, expected an IPv6 address whose scope is the name of an interface")
    return str(parsed)


def _expand(pattern: str) -> list[str]:
    """The names that a host or a range of hosts stands for, in the order in which they are written."""
    pieces = re.split(r"\[([^\[\]]*)\]", pattern)  # text, inside of brackets, text, inside of brackets, ..., text
    ranges = [inside.split(",") for inside in pieces[1::2]]
    _check_ranges(pattern, ranges)
    names = [name for parts in product(*ranges) for name in _one_range(pieces[0::2], parts)]
    for name in names:
        if not NAME.fullmatch(name):
            raise _Fault(f"{name!r}, expected a host name of letters, digits, dots, dashes and underscores")
    return names


def _check_ranges(pattern: str, ranges: Sequence[Sequence[str]]) -> None:
    total = 1
    for parts in ranges:
        matches = [RANGE_PART.fullmatch(part) for part in parts]
        spans = [int(match[2] or match[1]) - int(match[1]) + 1 if match else 0 for match in matches]
        if min(spans) < 1:
            raise _Fault(f"{pattern!r}, expected a range as in `gpu[01-04,07]`")
        total *= sum(spans)
    if total > MOST_HOSTS:
        raise _Fault(f"{pattern!r} stands for {total} hosts, expected at most {MOST_HOSTS}")


def _one_range(texts: Sequence[str], parts: Sequence[str]) -> list[str]:
    if not parts:
        return [texts[0]]
    from ClusterShell.NodeSet import NodeSet, NodeSetParseError  # 40 ms, which only a range has to pay

    folded = "".join(text + f"[{part}]" for text, part in zip(texts, parts, strict=False)) + texts[-1]
    if not NAME.fullmatch(re.sub(r"\[[0-9-]+\]", "0", folded)):
        raise _Fault(f"{folded!r}, expected a host name of letters, digits, dots, dashes and underscores")
    try:
        return list(map(str, NodeSet(folded)))
    except NodeSetParseError as error:
        raise _Fault(f"{folded!r} ({error}), expected a range as in `gpu[01-04,07]`") from None


def _merged(entries: Sequence[Host], source: str) -> tuple[list[Host], list[str]]:
    merged: dict[tuple[str | None, str], Host] = {}
    twice: dict[str, None] = {}
    for host in entries:
        earlier = merged.get((host.user, host.name))
        if earlier is not None and (earlier.max_slots or host.max_slots):
            twice[host.name] = None
        slots = host.slots + (earlier.slots if earlier else 0)
        merged[host.user, host.name] = Host(name=host.name, slots=slots, max_slots=host.max_slots, user=host.user)
    return list(merged.values()), [
        f"{source}: {name} twice, expected one line for a host with max_slots" for name in twice
    ]


def _colon(host: Host) -> str:
    name = f"[{host.name}]" if ":" in host.name else host.name
    return f"{host.user}@{name}:{host.slots}" if host.user else f"{name}:{host.slots}"


def _slots(host: Host) -> str:
    return f"{host.login} slots={host.slots}" + (f" max_slots={host.max_slots}" if host.max_slots else "")


def _lines(of: Callable[[Host], str]) -> Callable[[Sequence[Host]], str]:
    return lambda hosts: "".join(of(host) + "\n" for host in hosts)


DIALECTS: dict[str, Callable[[Sequence[Host]], str]] = {
    "openmpi": _lines(_slots),
    "hydra": _lines(_colon),
    "horovodrun": lambda hosts: ",".join(map(_colon, hosts)) + "\n",
    "list": _lines(lambda host: "\n".join([_colon(host).rpartition(":")[0]] * host.slots)),
}


def write(hosts: Sequence[Host], dialect: str) -> str:
    """`hosts` in one of `DIALECTS`; what it cannot say (`max_slots` outside of Open MPI's) is left out."""
    return DIALECTS[dialect](hosts)
