"""The watch that stands on each host of a job: it answers beats, and ends what the job left there.

It needs Python alone: its own source is sent to the host over ssh, so nothing has to be installed there. The processes
of a job are those with its token in their environment, and the launcher's daemon above them. When no beat has come for
the time that was agreed, this host is cut off (or the launching host is gone), and its ranks cannot go on: they are
killed.

    beat        it answers `beat`
    sweep       it kills the job's processes here, and answers `swept N`
    end         it does the same and goes
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

VARIABLE = "HVDTRAIN_JOB"
MARK = "hvdtrain-warden"
DAEMONS = ("prted", "orted", "hydra_pmi_proxy")
SWEEP_S = 5.0


def read_bytes(path: str) -> bytes:
    """The content of a file in /proc; nothing where the process is gone or someone else's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    """Whether that process still runs; a zombie does not."""
    return read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"], [b"X"])


def parent_of(pid: int) -> int:
    """The parent's number; 0 where the process is gone."""
    words = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(words[1]) if len(words) > 1 else 0


def processes_of(token: str) -> set[int]:
    """The processes of the job on this host, and the launcher's daemons above them; never this process."""
    wanted = f"{VARIABLE}={token}".encode()
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    mine = {pid for pid in numbers if wanted in read_bytes(f"/proc/{pid}/environ").split(b"\0")} - {os.getpid()}
    parents = {parent_of(pid) for pid in mine}
    daemons = {pid for pid in parents if read_bytes(f"/proc/{pid}/comm").decode().strip() in DAEMONS}
    return {pid for pid in mine | daemons if is_alive(pid)}


def sweep(token: str, spare: frozenset[int] = frozenset()) -> int:
    """Kill the job's processes on this host until there are none; how many there were."""
    killed: set[int] = set()
    deadline = time.monotonic() + SWEEP_S
    while (alive := processes_of(token) - spare) and time.monotonic() < deadline:
        for pid in alive:
            kill(pid)
        killed |= alive
        time.sleep(0.05)
    return len(killed)


def kill(pid: int) -> None:
    """SIGKILL, to a process that may be gone meanwhile."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def replace_older(token: str) -> None:
    """End an earlier watch of the same job here, whose connection was lost."""
    for name in os.listdir("/proc"):
        words = read_bytes(f"/proc/{name}/cmdline").split(b"\0") if name.isdigit() else []
        if MARK.encode() in words and token.encode() in words and int(name) != os.getpid():
            kill(int(name))


def say(text: str) -> None:
    """One line to the launching host; it may not be there any more."""
    try:
        os.write(1, (text + "\n").encode())
    except OSError:
        return


def stand(token: str, lost_after_s: float) -> None:
    """Answer until told to end, or until nothing was heard for too long."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    replace_older(token)
    say("beat")
    deadline, connected = time.monotonic() + lost_after_s, True
    while (left_s := deadline - time.monotonic()) > 0:
        if not connected:
            time.sleep(min(left_s, 0.5))
        elif select.select([0], [], [], min(left_s, 1.0))[0]:
            heard = os.read(0, 4096)
            connected = bool(heard)
            if b"end" in heard or b"sweep" in heard:
                say(f"swept {sweep(token)}")
            if b"end" in heard:
                return
            if heard:
                deadline = time.monotonic() + lost_after_s
                say("beat")
    sweep(token)


if __name__ == "__main__":
    stand(sys.argv[2], float(sys.argv[3]))
