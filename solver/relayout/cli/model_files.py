"""The files that the arguments of a command name: models, folders with models at any depth, and arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from relayout.cli.terminal import print_status
from relayout.errors import InputError, UsageError


def check_no_folder(model: Path, hint: str) -> None:
    """Raise UsageError for a folder where a model is expected."""
    if model.is_dir():
        raise UsageError("it is a folder", where=str(model), expected="a model", found="a folder", hint=hint)


def model_files(arguments: Sequence[Path]) -> dict[Path, Path]:
    """Each file once, with its path below the argument: the name, or `encoder/model.onnx` of a folder. In the order of
    the arguments; of a folder the `.onnx` files, sorted.

    A `.json` file of a folder may be a report, so graph JSON has to be named itself; a warning counts skipped files.
    Raises InputError for a folder that cannot be read, UsageError for one without models.
    """
    found: dict[Path, Path] = {}
    for argument in arguments:
        if argument.is_dir():
            found |= {file: file.relative_to(argument) for file in _models_in(argument)}
        else:
            found[argument] = Path(argument.name)
    return found


def _models_in(folder: Path) -> list[Path]:
    files = sorted(_walked(folder))
    models = [file for file in files if file.suffix == ".onnx"]
    if not models:
        raise UsageError(
            "no models", where=f"folder {folder}", expected="files .onnx, in it or in folders below", found="none"
        )
    left_out = sum(file.suffix == ".json" for file in files)
    if left_out:
        print_status(f"relayout: warning: {left_out} .json in {folder} not verified: name graph JSON itself")
    return models


def _walked(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        # By default os.walk skips folders that it cannot read: models would be missed without a message.
        where = f"folder {error.filename}"
        raise InputError("the folder cannot be read", where=where, found=error.strerror or str(error)) from error

    for path, _, names in os.walk(folder, onerror=refuse):
        # A pipe would never end. A link to nothing is an error later.
        files = (Path(path, name) for name in names)
        yield from (file for file in files if file.is_file() or not file.exists())


def arrays_in(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name. Raises InputError."""
    from relayout.verification.numeric.given_inputs import read_arrays

    where = f"--inputs {path}"
    try:
        with path.open("rb") as file:
            return read_arrays(file, where)
    except OSError as error:
        expected, found = "an .npz file of arrays, as numpy.savez writes it", error.strerror or "an error"
        raise InputError("the inputs cannot be read", where=where, expected=expected, found=found) from None
