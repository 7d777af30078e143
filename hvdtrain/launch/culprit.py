"""Who failed first, read from what launchers say on stderr when a job ends badly.

It is the second-best source: a rank that raised an exception has written `failure.json`. For a rank that was killed,
and for programs that are not hvdtrain's, the launcher's own words are all there is.

    culprit = Culprits()
    culprit.hear("prterun noticed that process rank 1 with PID 4711 on node gpu02 exited on signal 9 (Killed).")
    culprit.first                  # Culprit(rank=1, host="gpu02", what="exited on signal 9 (Killed)")
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# what each launcher says; the groups are named for the fields, and the first that matches any line wins
PATTERNS = (
    # Open MPI 4 and 5, a signal
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on$",
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) (?P<what>exited on signal .*?)\.?$",
    # Open MPI 4 and 5, an exit status: the name stands on one line, the status on the next
    r"Process name: \[\S+?[@,]\d+[\],]+(?P<rank>\d+)\]",
    # Open MPI, what a rank sees of another that is gone
    r"^\s+Peer host:\s+(?P<host>\S+)",
    # Open MPI 5, a daemon that is gone
    r"lost (?:communication|connection|contact).*?\bnode (?P<host>\S+)",
    r"Remote host:\s+(?P<host>\S+)",
    # SLURM
    r"srun: error: (?P<host>\S+?): tasks? (?P<rank>\d+)\S*: (?P<what>(?!Exited with exit code 75$).+)$",
    # Hydra
    r"=\s+PID \d+ RUNNING AT (?P<host>\S+)",
)


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Whom the launcher named first; None or empty where it did not say."""

    rank: int | None = None
    host: str = ""
    what: str = "failed"

    def __str__(self) -> str:
        who = "a process" if self.rank is None else f"rank {self.rank}"
        return f"{who}{f' on {self.host}' if self.host else ''} {self.what}"


@dataclass
class Culprits:
    """Listens to a launcher's stderr for the first that failed."""

    first: Culprit | None = None
    _patterns: list[re.Pattern[str]] = field(default_factory=lambda: [re.compile(text) for text in PATTERNS])

    def hear(self, line: str) -> None:
        """Take one line of stderr."""
        if self.first is not None:
            return
        for pattern in self._patterns:
            if match := pattern.search(line):
                found = match.groupdict()
                rank = found.get("rank")
                self.first = Culprit(
                    rank=None if rank is None else int(rank),
                    host=found.get("host") or "",
                    what=found.get("what") or "failed",
                )
                return
