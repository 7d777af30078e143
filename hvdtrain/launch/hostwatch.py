"""Which hosts of a running job still answer: a connection to each, with a beat every few seconds.

A host that has not answered for `lost_after_s` is lost, whatever the launcher thinks of it; one whose connection broke
gets a new one until then. One that never answered is not watched, rather than lost: ssh may not be allowed there.
Nothing here blocks: the supervisor polls.

    watch = HostWatch(hosts, token, lost_after_s=30, spawn=spawn_over_ssh(10), clock=time.monotonic)
    watch.poll()                      # send and hear beats
    watch.lost()                      # ("gpu02",)
    watch.order("sweep", limit_s=8)   # {"gpu01": 0, ...}: what the job left on each host was killed
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.launch import ssh, warden
from hvdtrain.launch.spec import Host

# The host's Python reads the watch's source from its standard input, and what follows is the conversation.
BOOTSTRAP = "import os\ns=b''\nn=int(os.sys.argv[4])\nwhile len(s)<n: s+=os.read(0,n-len(s))\nexec(s)"
RESPAWN_S = 3.0
LEAST_BEAT_S = 1.0

Spawn = Callable[[Host, Sequence[str]], "subprocess.Popen[bytes]"]


def spawn_over_ssh(connect_timeout_s: int) -> Spawn:
    """Start Python with the given arguments on another host; for this one, without ssh."""

    def spawn(host: Host, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, *arguments]
        if ssh.is_here(host):
            argv = command
        else:
            argv = ssh.argv(host.login, command, connect_timeout_s=connect_timeout_s)
        environment = {name: value for name, value in os.environ.items() if name != warden.VARIABLE}
        process = subprocess.Popen(
            argv,
            env=environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None  # both were asked for
            os.set_blocking(pipe.fileno(), False)
        return process

    return spawn


@dataclass
class Post:
    """The connection to one host.

    Attributes:
        host: which one.
        process: ssh, or the watch itself on this host.
        started: when the connection was made.
        heard: when the host last said something; None for a host that never did.
        unread: the start of a line that has not ended yet.
    """

    host: Host
    process: subprocess.Popen[bytes]
    started: float
    heard: float | None = None
    unread: bytes = b""

    def hear(self, now: float) -> list[str]:
        """The lines that have come since the last time."""
        assert self.process.stdout is not None  # spawned with pipes
        try:
            data = os.read(self.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return []
        if data:
            self.heard = now
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def tell(self, data: bytes) -> None:
        """Send what fits into the pipe; a host that takes nothing will be found silent."""
        assert self.process.stdin is not None  # spawned with pipes
        try:
            os.write(self.process.stdin.fileno(), data)
        except (BlockingIOError, BrokenPipeError):
            return

    def close(self) -> None:
        """End the connection."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None  # spawned with pipes
            pipe.close()


class HostWatch:
    """The posts of all hosts of a job; see the module's synopsis."""

    def __init__(
        self,
        hosts: Sequence[Host],
        token: str,
        *,
        lost_after_s: float,
        spawn: Spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token, self._lost_after_s, self._spawn, self._clock = token, lost_after_s, spawn, clock
        self._source = Path(warden.__file__).read_bytes()
        self._beaten = 0.0
        self._since = clock()
        self._posts = {host.name: self._post(host) for host in hosts}

    def _post(self, host: Host, heard: float | None = None) -> Post:
        arguments = ["-c", BOOTSTRAP, warden.MARK, self._token, str(self._lost_after_s), str(len(self._source))]
        post = Post(host, self._spawn(host, arguments), self._clock(), heard)
        post.tell(self._source)
        return post

    def poll(self) -> dict[str, list[str]]:
        """Hear every host, send the beat when it is due, and connect again where the connection broke."""
        now = self._clock()
        due = now - self._beaten >= max(LEAST_BEAT_S, self._lost_after_s / 6)
        self._beaten = now if due else self._beaten
        said = {}
        for name, post in self._posts.items():
            said[name] = post.hear(now)
            if due:
                post.tell(b"beat\n")
            if post.process.poll() is not None and now - post.started > RESPAWN_S:
                post.close()
                self._posts[name] = self._post(post.host, post.heard)
        return said

    def lost(self) -> tuple[str, ...]:
        """The hosts that have not answered for too long."""
        now = self._clock()
        return tuple(name for name, post in self._posts.items() if now - (post.heard or now) > self._lost_after_s)

    def unwatched(self) -> tuple[str, ...]:
        """The hosts that have never answered, although they had the time."""
        late = self._clock() - self._since > self._lost_after_s
        return tuple(name for name, post in self._posts.items() if late and post.heard is None)

    def silent_since(self, moment: float) -> tuple[str, ...]:
        """The hosts that have not been heard after `moment`, and are neither lost yet nor unwatched."""
        out = {*self.lost(), *self.unwatched()}
        return tuple(name for name, post in self._posts.items() if (post.heard or 0) <= moment and name not in out)

    def order(self, word: str, limit_s: float, pause: Callable[[float], None] = time.sleep) -> dict[str, int]:
        """Tell all hosts to ``sweep`` or ``end``, and wait for their answers: how many processes each had to kill."""
        for post in self._posts.values():
            post.tell(f"{word}\n".encode())
        answers: dict[str, int] = {}
        deadline = self._clock() + limit_s
        silent = {name for name, post in self._posts.items() if post.heard is None} | set(self.lost())
        while not set(self._posts) <= set(answers) | silent and self._clock() < deadline:
            for name, lines in self.poll().items():
                swept = [line for line in lines if line.startswith("swept ")]
                answers |= {name: int(swept[-1].split()[1])} if swept else {}
            pause(0.05)
        return answers

    def follow(self, hosts: Sequence[Host]) -> None:
        """Watch these hosts from now on, and no others."""
        for name in set(self._posts) - {host.name for host in hosts}:
            self._posts.pop(name).close()
        for host in hosts:
            if host.name not in self._posts:
                self._posts[host.name] = self._post(host)
        self._since = self._clock()

    def close(self) -> None:
        """End all connections; what still runs on a host then ends there by itself."""
        self.follow(())
