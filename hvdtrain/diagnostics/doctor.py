"""Will a training run here, and if not, what is to be done? Independent checks, each pass, warn or fail with a remedy.

Works where neither torch, MPI nor Horovod is installed: each is then one failed check.

    findings = examine(os.environ, prefix=Path(sys.prefix), ranks=2)
    print(plain(findings), end="")
    # pass  torch                 2.13.0+cpu
    # FAIL  Horovod               it is not installed
    #                             do: hvdtrain install-horovod
    worst(findings)                     # "fail"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvdtrain.checks.finding import Finding, Status
from hvdtrain.checks.machine import MACHINE_CHECKS, MachineFacts
from hvdtrain.checks.software import SOFTWARE_CHECKS, SoftwareFacts
from hvdtrain.checks.trial import TRIAL_CHECKS, TrialFacts
from hvdtrain.diagnostics.machine import machine_facts
from hvdtrain.diagnostics.software import software_facts
from hvdtrain.diagnostics.trial import start_trial

WORDS: dict[Status, str] = {"pass": "pass", "warn": "warn", "fail": "FAIL"}
STYLES: dict[Status, str] = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def diagnose(software: SoftwareFacts, machine: MachineFacts, trial: TrialFacts | None = None) -> tuple[Finding, ...]:
    """What these facts mean, one finding for each check, in the order of a start."""
    findings = [check(software) for check in SOFTWARE_CHECKS] + [check(machine) for check in MACHINE_CHECKS]
    if trial is not None:
        findings += [check(trial) for check in TRIAL_CHECKS]
    return tuple(findings)


def examine(env: Mapping[str, str], *, prefix: Path, ranks: int | None = None) -> tuple[Finding, ...]:
    """Examine this host and this environment.

    Args:
        env: the environment, as a launch would have it.
        prefix: the Python environment that Horovod is installed in.
        ranks: how many to start for a real all-reduce; None starts none.
    """
    trial = start_trial(ranks, env) if ranks else None
    return diagnose(software_facts(env, prefix=prefix), machine_facts(env, ranks=ranks), trial)


def worst(findings: Sequence[Finding]) -> Status:
    """The severest status among the findings."""
    there = {finding.status for finding in findings}
    return "fail" if "fail" in there else "warn" if "warn" in there else "pass"


def _summary(findings: Sequence[Finding]) -> str:
    counts = {status: sum(finding.status == status for finding in findings) for status in WORDS}
    return f"{len(findings)} checks: {counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail"


def _found(finding: Finding) -> str:
    return f"{finding.found} (asked: {finding.asked})" if finding.asked else finding.found


def plain(findings: Sequence[Finding]) -> str:
    """One line for each finding, and one more for its remedy: what a log or a pipe gets."""
    width, lines = max(len(finding.check) for finding in findings), []
    for finding in findings:
        lines.append(f"{WORDS[finding.status]}  {finding.check:<{width}}  {_found(finding)}")
        if finding.remedy:
            lines.append(f"{'':4}  {'':<{width}}  do: {finding.remedy}")
    return "\n".join([*lines, "", _summary(findings), ""])


def table(findings: Sequence[Finding]) -> Table:
    """The same for a terminal."""
    grid = Table(box=None, show_header=False, pad_edge=False, caption=_summary(findings), caption_justify="left")
    for finding in findings:
        text = Text(_found(finding))
        if finding.remedy:
            text.append(f"\ndo: {finding.remedy}", style="bold")
        grid.add_row(Text(WORDS[finding.status], style=STYLES[finding.status]), finding.check, text)
    return grid


def show(findings: Sequence[Finding], console: Console) -> None:
    """Print the findings, as a table on a terminal and as plain lines elsewhere."""
    if console.is_terminal:
        console.print(table(findings))
    else:
        console.file.write(plain(findings))


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for a program."""
    return {"status": worst(findings), "findings": [asdict(finding) for finding in findings]}
