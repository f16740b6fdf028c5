"""The command `relayout`: one module per verb, collected by `commands`.

Its exit status: 0 success, 1 findings, 2 bad input or usage, 3 infeasible, 4 no solution in time, 5 an internal error,
and 130 interrupted. Results go to stdout, progress and tables to stderr.
"""

from relayout.cli.entry_point import main, run

__all__ = ["main", "run"]
