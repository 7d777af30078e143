"""What an audit found, for people and for programs.

A report is clean when nothing was repeated, lost or otherwise wrong; an epoch that is not over yet is no fault.

    report.clean                               # False
    print(report.text())                       # REFUTED: sample 17 was used again at step 57 of epoch 0 ...
    json.dumps(report.as_json())
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from hvdtrain.collectives import Json

_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class EpochUse:
    """How an epoch was used.

    Attributes:
        epoch: its number, from 0.
        used: different samples that were used.
        n: samples in the data set.
        complete: whether it is over.
        before: samples used before the ledger began.
        padded: samples that were used again to fill its last step.
    """

    epoch: int
    used: int
    n: int
    complete: bool
    before: int
    padded: int

    def text(self) -> str:
        """One line."""
        notes = [] if self.complete else ["not over yet"]
        notes += [f"{self.before} used before the ledger began"] if self.before else []
        notes += [f"{self.padded} repeated to fill the last step"] if self.padded else []
        unused = self.n - self.used - self.before
        notes += [f"{unused} not used"] if self.complete and unused else []
        return f"epoch {self.epoch}: {self.used} of {self.n} samples" + "".join(f"; {note}" for note in notes)


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """A sample that an epoch used again."""

    epoch: int
    step: int
    sample: int


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A sample that an epoch should have used and did not."""

    epoch: int
    sample: int


@dataclass(kw_only=True)
class AuditReport:
    """The findings of an audit.

    Attributes:
        attempts: starts of the run.
        steps: steps that count.
        finished: whether the last attempt ended in order.
        epochs: how each epoch was used.
        repetitions: samples used more than once in an epoch.
        losses: samples that should have been used and were not.
        faults: everything else that is wrong, as sentences.
        undone_rows: rows of steps that a later resume, or the last kill, undid.
        torn_lines: lines that are no rows, as a kill leaves them.
    """

    attempts: int
    steps: int
    finished: bool
    epochs: list[EpochUse] = field(default_factory=list)
    repetitions: list[Repetition] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    undone_rows: int = 0
    torn_lines: int = 0

    @property
    def clean(self) -> bool:
        """Whether the ledger proves that each sample was used exactly once per epoch."""
        return not (self.repetitions or self.losses or self.faults)

    def fault(self, sentence: str) -> None:
        """Note something that is wrong."""
        self.faults.append(sentence)

    def repeated(self, epoch: int, step: int, sample: int) -> None:
        """Note a sample that `step` used again."""
        self.repetitions.append(Repetition(epoch=epoch, step=step, sample=sample))

    def lost(self, epoch: int, sample: int) -> None:
        """Note a sample that was not used."""
        self.losses.append(Loss(epoch=epoch, sample=sample))

    def epoch(self, number: int, *, used: int, n: int, complete: bool, before: int, padded: int) -> None:
        """Note how an epoch was used."""
        self.epochs.append(EpochUse(epoch=number, used=used, n=n, complete=complete, before=before, padded=padded))

    def as_json(self) -> dict[str, Json]:
        """The report as a JSON object."""
        return {"clean": self.clean, **asdict(self)}

    def text(self) -> str:
        """The report as lines; of each kind of fault the first twenty."""
        wrong = [f"sample {r.sample} was used again at step {r.step} of epoch {r.epoch}" for r in self.repetitions]
        lost = [f"sample {loss.sample} was never used in epoch {loss.epoch}" for loss in self.losses]
        lines = [f"{self.steps} steps in {self.attempts} attempts; {self.undone_rows} rows undone by kills and resumes"]
        lines += [f"{self.torn_lines} lines cut short"] if self.torn_lines else []
        lines += [epoch.text() for epoch in self.epochs]
        for kind in (wrong, lost, self.faults):
            lines += [f"REFUTED: {sentence}" for sentence in kind[:_SHOWN]]
            lines += [f"REFUTED: and {len(kind) - _SHOWN} more"] if len(kind) > _SHOWN else []
        lines += ["clean: no sample was used twice in an epoch, and none was left out"] if self.clean else []
        return "\n".join(lines)
