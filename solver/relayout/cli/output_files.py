"""The files that the command writes beside the model; each is there whole, or as it was."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from relayout.cli.terminal import print_data
from relayout.errors import UsageError

__all__ = ["STDOUT", "check_files", "check_output", "put"]

STDOUT = Path("-")


def check_output(path: Path) -> None:
    """Raise UsageError for a name that does not say the model's format."""
    from relayout.model.io import FORMATS

    if path.suffix not in FORMATS:
        raise UsageError(
            "the suffix says the format",
            where=f"-o {path}",
            expected=" or ".join(FORMATS),
            found=path.suffix or "no suffix",
        )


def check_files(files: Mapping[str, Path | None], *, reads: Iterable[Path | None] = ()) -> None:
    """Raise UsageError where a file cannot be put, before any work is done for it. Keys are the options.

    What is told of a model never takes the place of a file that is read; a model, after `-o`, may take its source's.
    """
    wanted: dict[Path, str] = {}
    kept = [path.resolve() for path in reads if path is not None]
    for option, path in files.items():
        if path is None:
            continue
        where = f"{option} {path}"
        if path in wanted:
            raise UsageError("two results in one file", where=where, expected="another file", found=wanted[path])
        wanted[path] = where
        if path == STDOUT:
            continue
        if option != "-o" and path.resolve() in kept:
            raise UsageError("a result in the place of what is read", where=where, expected="another file")
        if path.is_dir():
            raise UsageError("that is a folder", where=where, expected="the name of a file", found="a folder")
        if path.exists() and not path.is_file():
            continue  # /dev/stdout, a named pipe
        if not path.parent.is_dir():
            raise UsageError(
                "there is no such folder", where=where, expected="a folder", found=f"none at {path.parent}"
            )
        if not os.access(path.parent, os.W_OK):
            raise UsageError("the folder cannot be written", where=where, found=f"no permission for {path.parent}")


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
