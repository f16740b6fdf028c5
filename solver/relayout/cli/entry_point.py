"""The entry point: parse the command line, run the verb, and return the exit status; no exception leaves it."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Sequence

from relayout.model.collector import collector_paused

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's own) and return its exit status. Never raises."""
    try:
        return _run(arguments)
    except BaseException as error:
        from relayout.cli.exit_status import status_of

        return status_of(error)


def _run(arguments: Sequence[str] | None) -> int:
    # NumPy starts a thread for each core, and by default it spins for a while before it sleeps.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # The process ends with the command: a search for garbage would visit all that was read and made. Verbs that run for
    # long enable the collector.
    atexit.register(gc.freeze)
    if arguments is None:
        gc.disable()
    with collector_paused():
        from relayout.cli.commands import app
        from relayout.cli.exit_status import INTERRUPTED
        from relayout.cli.terminal import prepare_streams

    prepare_streams()
    status = app(args=arguments, prog_name="relayout", standalone_mode=False)
    if status == INTERRUPTED:
        # The parser returns this status for an interrupt.
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0
