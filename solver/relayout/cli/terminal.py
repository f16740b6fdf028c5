"""The two streams: results go to stdout, everything else to stderr. Closed pipes and control characters are handled."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TextIO

__all__ = ["prepare_streams", "print_data", "print_result", "print_status", "terminal_width"]

WIDTH_WITHOUT_TERMINAL = 120
# Names come from files: a control character is shown as its code.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def prepare_streams() -> None:
    """Make both streams accept any text, regardless of their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_result(text: str) -> None:
    """Print lines for a person to stdout."""
    _write(sys.stdout, text)


def print_data(text: str) -> None:
    """Print data for a program to stdout, in UTF-8."""
    sys.stdout.flush()
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _forget(sys.stdout)


def print_status(text: str) -> None:
    """Print to stderr."""
    _write(sys.stderr, text)


def terminal_width() -> int:
    """The maximum width of a table, in columns."""
    import shutil

    return max(60, shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns)


def _write(stream: TextIO, text: str) -> None:
    shown = _CONTROLS.sub(lambda control: f"\\x{ord(control[0]):02x}", text)
    try:
        stream.write(shown if shown.endswith("\n") else f"{shown}\n")
        stream.flush()
    except BrokenPipeError:
        _forget(stream)


def _forget(stream: TextIO) -> None:
    # The reader has closed the pipe. The stream is flushed again at exit.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
