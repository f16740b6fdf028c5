"""The two streams: results go to stdout, everything else to stderr. Closed pipes and control characters are handled."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from relayout.errors import UsageError

# Names come from files: a control character is shown as its code.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# A name with a line break in it may begin a line as a command to the runner of a CI begins: its first character is
# shown as a code too. GitHub's are `::error` and `##[error]`, those of Azure Pipelines `##vso[...]`.
_COMMAND = re.compile(r"^(\s*)(:(?=:)|#(?=#(?:vso)?\[))", re.MULTILINE)


def prepare_streams() -> None:
    """Make both streams accept any text, regardless of their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def leave_out_logs() -> None:
    """Keep onnx_ir's log off stderr. It calls a model invalid for attributes that are no text, which operators of other
    domains may have, and shows some names as they are, with line breaks in them."""
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)


_results: list[TextIO] = []


def results_stream() -> TextIO:
    """The stream for results, which is stdout."""
    return _results[-1] if _results else sys.stdout


@contextmanager
def results_alone() -> Iterator[None]:
    """Keep stdout for results: what a plugin prints goes to stderr."""
    _results.append(results_stream())
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def print_result(text: str) -> None:
    """Print lines for a person to stdout."""
    _write(results_stream(), text)


def print_data(text: str) -> None:
    """Print data for a program to stdout, in UTF-8."""
    print_bytes(text.encode("utf-8", "backslashreplace"))


def print_bytes(data: bytes) -> None:
    """Print data for a program to stdout."""
    stream = results_stream()
    with _written(stream):
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()


def print_status(text: str) -> None:
    """Print to stderr."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    shown = _CONTROLS.sub(lambda control: _code(control[0]), text)
    shown = _COMMAND.sub(lambda command: f"{command[1]}{_code(command[2])}", shown)
    with _written(stream):
        stream.write(shown if shown.endswith("\n") else f"{shown}\n")
        stream.flush()


def _code(character: str) -> str:
    return f"\\x{ord(character):02x}"


@contextmanager
def _written(stream: TextIO) -> Iterator[None]:
    """A closed pipe is no failure. Raises UsageError if the system cannot write, for instance to a full disk."""
    try:
        yield
    except OSError as error:
        # The rest of the buffer would be written again at exit, and fail again.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            where = "standard output" if stream is results_stream() else "standard error"
            raise UsageError("it cannot be written", where=where, found=error.strerror or str(error)) from error
