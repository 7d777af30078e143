"""How hvdtrain calls ssh: in batch mode, with a time limit, and with the user's own host-key policy and configuration.

argv("alice@gpu01", ["hostname"], connect_timeout_s=10)
# ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "alice@gpu01", "--", "hostname"]
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence

from hvdtrain.launch.spec import Host

WHY = "ssh asks no questions and gives up in time; host keys are your own ssh's policy"


def is_here(host: Host) -> bool:
    """Whether that name means this host, so that no ssh is needed."""
    own = socket.gethostname()
    return host.name in {"localhost", "127.0.0.1", "::1", own, own.partition(".")[0]}


def options(connect_timeout_s: int) -> list[str]:
    """The options of every ssh: no questions (a password, an unknown host key) and no endless waiting."""
    return ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_timeout_s}"]


def argv(login: str, command: Sequence[str], *, connect_timeout_s: int, further: Sequence[str] = ()) -> list[str]:
    """The argument list that runs `command` on another host; ssh hands it to a shell there, so it is quoted here."""
    return ["ssh", *options(connect_timeout_s), *further, login, "--", shlex.join(command)]
