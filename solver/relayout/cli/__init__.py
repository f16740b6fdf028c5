"""The command `relayout`: one module a verb, which `commands` collects.

Its exit status: 0 done, 1 findings, 2 bad input or usage, 3 infeasible, 4 nothing found in the time, 5 a fault of
relayout, and 130 interrupted. Results go to stdout, progress and tables to stderr.
"""

from relayout.cli.entry_point import main

__all__ = ["main"]
