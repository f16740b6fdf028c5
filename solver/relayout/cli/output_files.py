"""The output files of the command. Each is written completely or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from relayout.cli.terminal import print_data
from relayout.errors import UsageError

if TYPE_CHECKING:
    from relayout.report.results import Results
    from relayout.report.schema import Report

# The suffixes of reports that differ from the names of their formats.
SUFFIXES = {"md": "markdown", "txt": "text", "xml": "junit"}
STDOUT = Path("-")


def is_stdout(path: Path) -> bool:
    """Whether the path is `-`, or `-.onnx` or `-.json`, where the suffix says the format."""
    return path.stem == "-" and len(path.parts) == 1 and path.suffix in ("", ".onnx", ".json")


def check_output(path: Path) -> None:
    """Raise UsageError for a folder, and for a suffix that is not a model format."""
    from relayout.model.io import FORMATS

    _check_no_folder(path, f"-o {path}")
    if not is_stdout(path) and path.suffix not in FORMATS:
        raise UsageError(
            "the suffix says the format",
            where=f"-o {path}",
            expected=" or ".join(FORMATS),
            found=path.suffix or "no suffix",
        )


def check_files(files: Iterable[tuple[str, Path]], *, reads: Iterable[Path | None] = ()) -> None:
    """Raise UsageError for a file that cannot be written, before any work. `files` are pairs of option and file.

    A report must not overwrite an input; a model, after `-o`, may overwrite its source.
    """
    wanted: dict[Path, str] = {}
    kept = [os.path.realpath(path) for path in reads if path is not None]
    for option, path in files:
        where = f"{option} {path}"
        path = STDOUT if is_stdout(path) else path
        if path in wanted:
            raise UsageError("two results in one file", where=where, expected="another file", found=wanted[path])
        wanted[path] = where
        if is_stdout(path):
            continue
        if option != "-o" and os.path.realpath(path) in kept:
            raise UsageError("a result would overwrite an input", where=where, expected="another file")
        _check_no_folder(path, where)
        if path.exists() and not path.is_file():
            continue  # /dev/stdout, a named pipe
        if not path.parent.is_dir():
            raise UsageError("no such folder", where=where, expected="a folder", found=f"none at {path.parent}")
        if not os.access(path.parent, os.W_OK):
            reason = "a read-only file system at" if _is_read_only(path.parent) else "no permission for"
            raise UsageError("the folder cannot be written", where=where, found=f"{reason} {path.parent}")


def _check_no_folder(path: Path, where: str) -> None:
    if path.is_dir():
        raise UsageError("the path is a folder", where=where, expected="the name of a file", found="a folder")


def _is_read_only(folder: Path) -> bool:
    # Windows does not say it.
    return sys.platform != "win32" and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def report_formats(files: Sequence[Path], chosen: str | None) -> dict[Path, str]:
    """The format of each report: the chosen one, else by its suffix. A format without a file is for stdout. Raises
    UsageError."""
    if not files and chosen is None:
        return {}
    from relayout.report.formats import FORMATS

    if chosen is not None and chosen not in FORMATS:
        raise UsageError("unknown format", where="--format", expected=" or ".join(FORMATS), found=chosen)
    suffixes = {**{name: name for name in FORMATS}, **SUFFIXES}
    return {path: chosen or suffixes.get(path.suffix[1:], "json") for path in files or [STDOUT]}


def write_reports(formats: dict[Path, str], results: Results) -> None:
    """Write the results to each file in its format."""
    if not formats:
        return
    from relayout.report.formats import FORMATS

    for path, name in formats.items():
        put(path, "--report", FORMATS[name](results))


def write_report(formats: dict[Path, str], report: Report, model: Path, status: int) -> None:
    """Write the report of one model to each file in its format."""
    if not formats:
        return
    from relayout.report.results import ModelResult, Results

    seconds = sum(report.solver.seconds.values()) if report.solver is not None else 0.0
    write_reports(formats, Results((ModelResult(model.as_posix(), status, seconds, report),)))


def put(path: Path, option: str, text: str) -> None:
    """Write `text` to the file, or to stdout for `-`. Raises UsageError."""
    from relayout.model.onnx_file import replace_file

    if path == STDOUT:
        print_data(text)
        return
    data = text.encode("utf-8", "backslashreplace")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        with replace_file(path) as file:
            file.write(data)
    except OSError as error:
        raise UsageError("the file cannot be written", where=f"{option} {path}", found=error.strerror or "") from error
