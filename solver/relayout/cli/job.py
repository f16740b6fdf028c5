"""The work of the command on one model: read, legalize, finish, save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from relayout.cli.option_values import check_known
from relayout.cli.options import Request
from relayout.errors import InputError

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend.interface import Backend
    from relayout.legalization import Outcome

__all__ = ["STEPS", "backend_of", "check_dims", "legalize_file", "read_file", "save"]

# read, requirements, solve, rewrite, check, write
STEPS = 6
_CHUNK = 1 << 20


def backend_of(request: Request, model: ir.Model | None = None) -> Backend:
    """The backend of the request, with its options; without one, that of `model`'s metadata. Raises UsageError."""
    from relayout.backend.loading import load_backend
    from relayout.model.recorded_backend import recorded_backend

    name, options = request.backend, request.options.backend_options
    if name is None:
        assert model is not None
        name, options = recorded_backend(model, options)
    return load_backend(name, options=options)


def read_file(path: Path) -> ir.Model:
    """The model in a file. Raises InputError, which names the file."""
    from relayout.model.io import read_model

    try:
        return read_model(path)
    except InputError as error:
        if str(path) not in error.where:
            error.where = f"file {path}, {error.where}" if error.where else f"file {path}"
        raise


def legalize_file(
    path: Path, request: Request, backend: Backend, progress: Callable[[str], None], *, strict: bool = True
) -> Outcome:
    """The legal model of the file at `path`, with its report. Raises the errors of `relayout.legalize`.

    With `strict`, a name in the options that is not in the model is a UsageError.
    """
    from relayout.legalization import finish, legalize_model

    progress("read")
    model = read_file(path)
    if strict:
        # A number is TVM's count of convolutions, which the backend resolves.
        names = [name for name in request.skipped if not name.isdecimal()]
        check_known("--skip", names, (node.name for node in model.graph.all_nodes() if node.name), "node")
        check_dims(request, model)
    outcome = legalize_model(model, backend, request.options, progress=progress)
    return finish(outcome, backend, request.options, path, progress=progress)


def check_dims(request: Request, *models: ir.Model) -> None:
    """Raise UsageError if a size is given for a symbolic dim that none of the models has."""
    dims = request.options.dims or {}
    if dims:
        check_known("--dim", dims, set().union(*map(_dim_names, models)), "symbolic dim")


def save(outcome: Outcome, source: Path, target: Path) -> None:
    """Write the legal model; if nothing changed and the format is the same, copy the source."""
    import shutil

    from relayout.model.external_data import is_in_file
    from relayout.model.io import write_model
    from relayout.model.onnx_file import replace_file

    constants = (value.const_value for value in outcome.model.graph.initializers.values())
    if outcome.changed or source.suffix != target.suffix or any(is_in_file(constant) for constant in constants):
        write_model(outcome.model, target)
    elif not (target.exists() and target.samefile(source)):
        with source.open("rb") as original, replace_file(target) as copy:
            shutil.copyfileobj(original, copy, _CHUNK)


def _dim_names(model: ir.Model) -> set[str]:
    """The symbolic dims of the graph's inputs and of all values computed from them."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {
        dim.value
        for value in values
        if value.shape is not None
        for dim in value.shape
        if not isinstance(dim, int) and dim.value is not None
    }
