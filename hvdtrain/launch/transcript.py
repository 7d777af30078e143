"""An invocation as text that can be read, and pasted into a shell: what ``--dry-run`` prints.

Reasons stand above as comments; below them stands the whole command, quoted, one option a line.

    print(transcript(invocation), end="")
    # # --bind-to none: a rank and Horovod's background thread must not share one core, ...
    # mpirun \\
    #     -np 2 \\
    #     --bind-to none \\
    #     hvdtrain run digits
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hvdtrain.launch.spec import Invocation, Option


def transcript(invocation: Invocation) -> str:
    """The notes and reasons as comments, then the command; it ends with a line break."""
    return "\n".join([*_comments(invocation), *_command(invocation), ""])


def _comments(invocation: Invocation) -> Iterator[str]:
    yield from (f"# {note}" for note in invocation.notes)
    seen: set[str] = set()
    for option in invocation.options:
        if option.why not in seen:
            yield f"# {_label(invocation, option)}: {option.why}"
        seen.add(option.why)
    for variable in invocation.variables:
        if variable.why not in seen:
            names = [other.name for other in invocation.variables if other.why == variable.why]
            yield f"# {', '.join(names)}: {variable.why}"
        seen.add(variable.why)


def _label(invocation: Invocation, option: Option) -> str:
    alike = [other for other in invocation.options if other.why == option.why]
    return shlex.join(option.words) if len(alike) == 1 else f"{option.words[0]} ({len(alike)} times)"


def _command(invocation: Invocation) -> Iterator[str]:
    if invocation.kept is not None:
        yield " ".join(["env -i", *(f'{name}="${name}"' for name in invocation.kept), "\\"])
    for variable in invocation.variables:
        yield f"{variable.name}={shlex.quote(variable.value)} \\"
    yield f"{shlex.quote(invocation.program)} \\"
    for option in invocation.options:
        yield f"    {shlex.join(option.words)} \\"
    yield f"    {shlex.join(invocation.command)}"
