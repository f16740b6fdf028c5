"""`python -m relayout` is the command `relayout`."""

from __future__ import annotations

import sys

from relayout.cli import run

if __name__ == "__main__":
    sys.exit(run())
