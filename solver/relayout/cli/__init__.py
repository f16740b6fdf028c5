"""The command `relayout`.

Its exit status: 0 done, 1 findings, 2 bad input or usage, 3 infeasible, 4 nothing found in the time, 5 our own fault,
and 130 where it was interrupted. Results go to stdout, progress and tables to stderr.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's own) and return its exit status; nothing is raised."""
    try:
        return _run(arguments)
    except BaseException as error:
        from relayout.cli.exit_status import status_of

        return status_of(error)


def _run(arguments: Sequence[str] | None) -> int:
    from relayout.cli.commands import app
    from relayout.cli.exit_status import INTERRUPTED
    from relayout.cli.terminal import prepare_streams

    prepare_streams()
    status = app(args=arguments, prog_name="relayout", standalone_mode=False)
    if status == INTERRUPTED:
        # The parser has made this status of an interrupt.
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0
