"""From an exception to a message on stderr and an exit status."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from relayout.cli.terminal import print_status
from relayout.errors import InfeasibleError, InputError, InternalError, OutOfTimeError, RelayoutError, UsageError
from relayout.options import in_flags

DONE, FINDINGS, BAD_INPUT, INFEASIBLE, OUT_OF_TIME, FAULT = range(6)
INTERRUPTED = 130

_STATUS: dict[type[RelayoutError], int] = {
    InputError: BAD_INPUT,
    UsageError: BAD_INPUT,
    InfeasibleError: INFEASIBLE,
    OutOfTimeError: OUT_OF_TIME,
}
DEBUG = "RELAYOUT_DEBUG"


def status_of(error: BaseException) -> int:
    """Print the error to stderr, and return the exit status, also where stderr cannot be written. RELAYOUT_DEBUG=1
    adds the traceback."""
    if isinstance(error, SystemExit):
        if isinstance(error.__context__, BrokenPipeError):
            # The parser's help: a closed pipe is no failure.
            return DONE
        return error.code if isinstance(error.code, int) else DONE
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        with suppress(UsageError):
            print_status("relayout: interrupted")
        return INTERRUPTED
    status, message = describe(error)
    with suppress(UsageError):
        show_traceback(error)
        print_status(f"relayout: error: {message}")
    return status


def show_traceback(error: BaseException) -> None:
    """Print the traceback to stderr if RELAYOUT_DEBUG is set."""
    if os.environ.get(DEBUG):
        import traceback

        print_status("".join(traceback.format_exception(error)))


def describe(error: BaseException) -> tuple[int, str]:
    """The exit status of a failure, and its message in the words of the command."""
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return status, in_flags(str(error))
    usage = getattr(error, "format_message", None)
    if usage is not None:
        # A parser error, whose class is private to typer.
        return BAD_INPUT, _with_help(error, usage())
    if isinstance(error, OSError) and error.strerror:
        # No space left, no permission, a missing file: the system's message is enough, and it is no bug.
        where = f"{error.filename}: " if error.filename else ""
        return BAD_INPUT, f"{where}the system refused\n  {'found:':<10}{error.strerror}"
    if isinstance(error, MemoryError):
        return FAULT, "there is not enough memory"
    text = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {str(error)[:500]}"
    return FAULT, (
        f"{text}\n  {'at:':<10}{_location(error.__traceback__)}\n"
        f"  {'hint:':<10}this is a bug in relayout; please report it with the model; {DEBUG}=1 shows the traceback"
    )


def _with_help(error: BaseException, message: str) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "relayout"
    return f"{message}\n  {'hint:':<10}{command} --help"


def _location(trace: TracebackType | None) -> str:
    """The innermost line of relayout's own code."""
    package = Path(__file__).parents[1]
    location = "unknown"
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(package):
            location = f"{file.relative_to(package.parent)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return location
