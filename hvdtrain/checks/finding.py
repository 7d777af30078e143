"""What a check says, in the shape that the launch guard, the preflight and `doctor` share.

A finding that is not a pass has all three parts of a message: what was asked, what was found, and what to type.

    passed("torch", "2.13.0")
    failed("Horovod", asked="train", found="it is not installed", remedy="hvdtrain install-horovod")
    [finding.check for finding in findings if finding.status == "fail"]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check says: whether it holds, what it saw, and what to type when it does not."""

    check: str
    status: Status
    asked: str = ""
    found: str = ""
    remedy: str = ""


def passed(check: str, found: str = "") -> Finding:
    """The check holds, or its facts are not known."""
    return Finding(check=check, status="pass", found=found)


def warned(check: str, *, found: str, remedy: str, asked: str = "") -> Finding:
    """It will run, but not as well as it could, or not for long."""
    return Finding(check=check, status="warn", asked=asked, found=found, remedy=remedy)


def failed(check: str, *, found: str, remedy: str, asked: str = "") -> Finding:
    """It cannot work."""
    return Finding(check=check, status="fail", asked=asked, found=found, remedy=remedy)
