"""The command `relayout`.

Its exit status: 0 done, 1 findings, 2 bad input or usage, 3 infeasible, 4 nothing found in the time, 5 our own fault,
and 130 where it was interrupted. Results go to stdout, progress and tables to stderr.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's own) and return its exit status; nothing is raised."""
    from relayout.cli.commands import app
    from relayout.cli.deferred import defer_slow_imports
    from relayout.cli.failures import INTERRUPTED, status_of
    from relayout.cli.terminal import prepare_streams

    prepare_streams()
    defer_slow_imports()
    try:
        status = app(args=arguments, prog_name="relayout", standalone_mode=False)
    except BaseException as error:
        return status_of(error)
    if status == INTERRUPTED:
        # The parser turns an interrupt into this status by itself.
        return status_of(KeyboardInterrupt())
    return status if isinstance(status, int) else 0
