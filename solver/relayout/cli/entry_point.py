"""The entry point: parse the command line, run the verb, and return the exit status; no exception leaves it."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from relayout.model.collector import collector_paused


def run() -> int:
    """`main` for a process of its own, which ends with it: the return value is the process's exit status."""
    _open_closed_streams()
    _send_native_output_to_stderr()
    # NumPy starts a thread for each core, and by default it spins for a while before it sleeps.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # A search for garbage would visit all that was read and made. Verbs that run for long enable the collector.
    gc.disable()
    ended: list[int] = []
    atexit.register(_end_at_once, ended)
    ended.append(main())
    return ended[0]


def _open_closed_streams() -> None:
    """Open the standard streams that the caller has closed, so that no file gets their numbers: nothing is read, what
    goes to stderr is lost, and writing a result to stdout is an error."""
    for name, access, mode in (("stdin", os.O_RDWR, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_RDWR, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode))


def _send_native_output_to_stderr() -> None:
    """Keep stdout for results: native code, such as onnx's checker, writes its warnings to file descriptor 1."""
    with suppress(OSError, ValueError):
        own = os.dup(sys.stdout.fileno())
        results = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        sys.stdout = results


def _end_at_once(ended: Sequence[int]) -> None:
    """End the process without freeing its objects one by one. `atexit` runs its first handler after all others. Output
    that cannot be written is an error, unless its reader has left."""
    if not ended:
        return
    status = ended[0]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass
        except (OSError, ValueError) as error:
            from relayout.cli.exit_status import status_of

            # After another error its own message has been printed.
            status = status or status_of(error)
    os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's own) and return its exit status. Never raises."""
    try:
        return _run(arguments)
    except BaseException as error:
        from relayout.cli.exit_status import status_of

        return status_of(error)


def _run(arguments: Sequence[str] | None) -> int:
    with collector_paused():
        from relayout.cli.commands import app
        from relayout.cli.exit_status import INTERRUPTED
        from relayout.cli.terminal import leave_out_logs, prepare_streams

    prepare_streams()
    leave_out_logs()
    status = app(args=arguments, prog_name="relayout", standalone_mode=False)
    if status == INTERRUPTED:
        # The parser returns this status for an interrupt.
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0
