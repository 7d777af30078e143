"""Versions of the libraries that hvdtrain stands on, and how versions are compared.

release("2.13.0+cpu")                              # (2, 13, 0)
release("2.14.1") > release(TESTED_TORCH)          # True
release("2.5.1") < OLDEST_TORCH                    # True: refused
"""

from __future__ import annotations

import re

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)
TESTED_TORCH = "2.13.0"


def release(version: str) -> tuple[int, ...]:
    """The numbers at the front of a version, for comparison: ``2.13.0+cpu`` is (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()
