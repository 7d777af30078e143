"""The proof, from the ledger alone, that each epoch used each sample exactly once, across kills, resumes and sizes.

Reading only. Steps that a resume undid are left out; what counts must be every step from the first to the last, on
every rank of its attempt, each epoch from position 0 to n, no sample twice and none left out. One step is in memory at
a time, and for the epoch that is read a bit per sample (`usage`).

    report = audit(Path("runs/digits"))
    report.clean                               # True
    print(report.text())                       # epoch 0: 1437 of 1437 samples, each once ...
    report.as_json()                           # the same for programs

A planted loss or repetition is named by sample, epoch and step. In an epoch that is not over, a lost sample is found by
comparing with the order that (seed, epoch) gives; in one that is over, by what was never used.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np

from hvdtrain.data.ledger import Attempt, Row, ledger_directory, rank_path, read_attempts, read_ends, read_rows
from hvdtrain.data.partition import share_of, wrap
from hvdtrain.data.permutation import Indices, Permutation
from hvdtrain.data.report import AuditReport
from hvdtrain.data.usage import Usage
from hvdtrain.errors import RunDirectoryError

_NAMED = 1000  # samples of one kind of fault that are looked up and kept


@dataclass(frozen=True)
class Plan:
    """What the attempts say must be in the ledger.

    Attributes:
        attempts: by number.
        limits: by number, the last step of it that counts.
        first: the first step that must be there.
        last: the last one.
        open_end: whether the last attempt did not end in order, so that rows after `last` may be those of a kill.
    """

    attempts: dict[int, Attempt]
    limits: dict[int, int]
    first: int
    last: int
    open_end: bool


def audit(run_dir: Path) -> AuditReport:
    """Read the whole ledger of a run and say what is right and wrong with it.

    Raises:
        RunDirectoryError: there is no ledger.
    """
    attempts = read_attempts(run_dir)
    if not attempts:
        raise RunDirectoryError(
            f"audit {run_dir}",
            found=f"no ledger in {ledger_directory(run_dir)}",
            remedy="train with --data.ledger true",
        )
    plan = _plan(run_dir, attempts)
    report = AuditReport(attempts=len(attempts), steps=max(plan.last - plan.first + 1, 0), finished=not plan.open_end)
    _Audit(plan, report).run(run_dir)
    return report


def _plan(run_dir: Path, attempts: list[Attempt]) -> Plan:
    limits: dict[int, int] = {}
    last = attempts[-1]
    end = read_ends(run_dir).get(last.attempt)
    limit = _last_common_step(run_dir, last) if end is None else end
    for attempt in reversed(attempts):
        limits[attempt.attempt] = limit
        limit = min(limit, attempt.resumed_from or 0)
    # what counts begins with the latest start from nothing, or with the first record of a ledger that began later
    fresh = max((at for at, attempt in enumerate(attempts) if attempt.resumed_from is None), default=0)
    began = min(attempt.resumed_from or 0 for attempt in attempts[fresh:])
    return Plan(
        attempts={attempt.attempt: attempt for attempt in attempts},
        limits=limits,
        first=began + 1,
        last=max(limits[last.attempt], last.resumed_from or 0),
        open_end=end is None,
    )


def _last_common_step(run_dir: Path, attempt: Attempt) -> int:
    """The last step of a killed attempt that all of its ranks had brought to their files."""
    steps = []
    for rank in range(attempt.size):
        rows = (row for row in read_rows(rank_path(run_dir, rank)) if row is not None)
        steps.append(max((row.step for row in rows if row.attempt == attempt.attempt), default=0))
    return max(min(steps), attempt.resumed_from or 0)


@dataclass
class _Epoch:
    """What is known of the epoch that is being read."""

    number: int
    attempt: Attempt
    began_at: int
    position: int
    used: Usage
    suspects: set[int] = field(default_factory=set)  # not used at their step
    padded: int = 0

    @cached_property
    def order(self) -> Permutation:
        """The order in which its samples should have been used."""
        one = self.attempt
        return Permutation(one.n, seed=one.seed, epoch=self.number, shuffle=one.shuffle)

    def samples_at(self, start: int, stop: int) -> Indices:
        """The samples at these positions; at most so many as are named."""
        positions = np.arange(start, min(stop, start + max(_NAMED, self.attempt.global_batch_size)), dtype=np.int64)
        return self.order.at(wrap(positions, self.attempt.n)) if self.attempt.n else positions[:0]


class _Audit:
    def __init__(self, plan: Plan, report: AuditReport) -> None:
        self._plan = plan
        self._report = report
        self._epoch: _Epoch | None = None
        self._next_step = plan.first

    def run(self, run_dir: Path) -> None:
        """Go through the steps in order, then look at what is missing at the end."""
        ranks = range(max(attempt.size for attempt in self._plan.attempts.values()))
        streams = [self._counting_rows(run_dir, rank) for rank in ranks]
        merged = heapq.merge(*streams, key=lambda pair: (pair[1].step, pair[0]))
        for step, group in groupby(merged, key=lambda pair: pair[1].step):
            self._read_step(step, list(group))
        if self._next_step <= self._plan.last:
            self._report.fault(f"steps {self._next_step} to {self._plan.last} are not in the ledger of any rank")
        if self._epoch is not None:
            self._end_epoch(self._epoch, last=True)

    def _counting_rows(self, run_dir: Path, rank: int) -> Iterator[tuple[int, Row]]:
        """The rows of one rank that no later resume undid."""
        for row in read_rows(rank_path(run_dir, rank)):
            if row is None:
                self._report.torn_lines += 1
            elif row.attempt not in self._plan.attempts:
                self._report.fault(f"rank {rank} wrote step {row.step} in attempt {row.attempt}, which never began")
            elif row.step <= self._plan.limits[row.attempt]:
                yield rank, row
            else:
                self._report.undone_rows += 1

    def _read_step(self, step: int, group: list[tuple[int, Row]]) -> None:
        if step > self._next_step:
            self._report.fault(f"steps {self._next_step} to {step - 1} are not in the ledger of any rank")
        elif step < self._next_step:
            self._report.fault(f"step {step} is in the ledger again, after step {self._next_step - 1}")
        self._next_step = step + 1
        first = group[0][1]
        attempt = self._plan.attempts[first.attempt]
        if len({row[:5] for _, row in group}) > 1:
            self._report.fault(f"step {step}: ranks disagree on attempt, epoch or positions")
        epoch = self._epoch_of(first, attempt)
        self._check_ranks(step, group, attempt, epoch)
        used = np.array([sample for _, row in group for sample in row.samples], dtype=np.int64)
        self._check_samples(step, first, used, epoch)
        epoch.position = first.stop

    def _epoch_of(self, row: Row, attempt: Attempt) -> _Epoch:
        """The epoch of a step, after the one before was closed; a gap between positions is a fault."""
        epoch = self._epoch
        if epoch is not None and epoch.number == row.epoch:
            if row.start != epoch.position:
                self._skipped(epoch, row)
            if _identity(attempt) == _identity(epoch.attempt):
                epoch.attempt = attempt
            else:
                self._report.fault(f"attempt {attempt.attempt} went on with another data set, seed or order")
            return epoch
        expected = 0
        if epoch is not None:
            self._end_epoch(epoch, last=False)
            if row.epoch != epoch.number + 1:
                self._report.fault(f"step {row.step}: epoch {row.epoch} comes after epoch {epoch.number}")
        elif self._plan.first > 1:
            expected = row.start  # the ledger began in the middle of this epoch
        self._epoch = _Epoch(row.epoch, attempt, expected, expected, Usage(attempt.n))
        if row.start != expected:
            self._skipped(self._epoch, row)
        return self._epoch

    def _skipped(self, epoch: _Epoch, row: Row) -> None:
        self._report.fault(
            f"step {row.step} begins at position {row.start} of epoch {row.epoch}, where {epoch.position} was next"
        )
        epoch.suspects.update(epoch.samples_at(epoch.position, row.start).tolist())

    def _check_ranks(self, step: int, group: list[tuple[int, Row]], attempt: Attempt, epoch: _Epoch) -> None:
        """Every rank of the attempt has written exactly one row."""
        ranks = [rank for rank, _ in group]
        for rank in sorted({rank for rank in ranks if ranks.count(rank) > 1}):
            self._report.fault(f"rank {rank} wrote step {step} more than once")
        for rank in sorted(set(range(attempt.size)) - set(ranks)):
            row = group[0][1]
            share = share_of(range(row.start, row.stop), rank=rank, size=attempt.size)
            lost = epoch.samples_at(share.start, share.stop)
            self._report.fault(f"rank {rank} wrote nothing for step {step} (its {len(share)} samples: {_some(lost)})")
        for rank in sorted(set(ranks) - set(range(attempt.size))):
            self._report.fault(f"rank {rank} wrote step {step}, in an attempt of {attempt.size} ranks")

    def _check_samples(self, step: int, row: Row, used: Indices, epoch: _Epoch) -> None:
        """No sample is foreign or used before; those that should have been used here and were not are suspects."""
        n = epoch.attempt.n
        if len(used) != row.stop - row.start:
            self._report.fault(f"step {step} used {len(used)} samples of the {row.stop - row.start} that it says")
        foreign = used[(used < 0) | (used >= n)]
        if foreign.size:
            self._report.fault(f"step {step} used samples that the data set lacks: {_some(foreign)}")
        expected = epoch.samples_at(row.start, min(row.stop, n))
        if row.stop > n and epoch.attempt.remainder == "pad":
            epoch.padded += row.stop - n
            used = used[: n - row.start]  # the ranks' parts are contiguous, so what was padded stands at the end
        for sample in epoch.used.add(used[(used >= 0) & (used < n)]).tolist():
            self._report.repeated(epoch.number, step, sample)
        if not np.array_equal(used, expected):
            epoch.suspects.update(np.setdiff1d(expected, used)[:_NAMED].tolist())

    def _end_epoch(self, epoch: _Epoch, *, last: bool) -> None:
        n = epoch.attempt.n
        dropped = max(n - epoch.position, 0)
        by_policy = epoch.attempt.remainder == "drop" and dropped < epoch.attempt.global_batch_size
        complete = dropped == 0 or by_policy
        if not (complete or last):
            self._report.fault(f"epoch {epoch.number} ended at position {epoch.position} of {n}")
        if epoch.began_at or (last and not complete):
            lost = sorted(sample for sample in epoch.suspects if sample not in epoch.used)
        else:
            lost = _never_used(epoch, dropped if complete else 0)
        for sample in lost:
            self._report.lost(epoch.number, sample)
        self._report.epoch(
            epoch.number, used=epoch.used.count, n=n, complete=complete, before=epoch.began_at, padded=epoch.padded
        )


def _identity(attempt: Attempt) -> tuple[int, int, bool]:
    return attempt.n, attempt.seed, attempt.shuffle


def _never_used(epoch: _Epoch, dropped: int) -> list[int]:
    """The samples that an epoch which is over did not use, without those that the last `dropped` positions have."""
    n = epoch.attempt.n
    if epoch.used.count == n - dropped:
        return []
    missing = np.setdiff1d(epoch.used.missing(limit=_NAMED + dropped), epoch.order[n - dropped :])
    lost: list[int] = missing[:_NAMED].tolist()
    return lost


def _some(samples: Indices, limit: int = 10) -> str:
    shown = ", ".join(map(str, samples[:limit].tolist()))
    return f"{shown}, ..." if len(samples) > limit else shown
