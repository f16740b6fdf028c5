"""`python -m relayout` is the command `relayout`."""

from __future__ import annotations

import sys

from relayout.cli import main

if __name__ == "__main__":
    sys.exit(main())
