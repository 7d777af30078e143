"""`python -m hvdtrain` and the console script `hvdtrain`."""

from __future__ import annotations

import sys

from hvdtrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
