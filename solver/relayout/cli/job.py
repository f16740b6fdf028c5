"""The work of the command on one model: read, legalize, finish, save."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayout.cli.options import Request
from relayout.errors import BackendError, InputError, UnknownOptionError, UsageError, check_known

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend.interface import Backend
    from relayout.legalization import Outcome
    from relayout.model.io import Source

STDIN = Path("-")

# read, requirements, solve, rewrite, check, write
STEPS = 6
_CHUNK = 1 << 20


def backend_of(request: Request, model: ir.Model | None = None) -> Backend:
    """The backend of the request, with its options; without one, that of `model`'s metadata. Raises UsageError."""
    from relayout.backend.loading import load_backend
    from relayout.backend.registry import find_backends
    from relayout.model.metadata import recorded_backend

    name, options = request.backend, request.options.backend_options
    if name is None:
        assert model is not None
        name, options = recorded_backend(model, options)
    try:
        return load_backend(name, options=options)
    except UnknownOptionError as error:
        short = next((flag for option, flag in request.short.items() if option in error.names), None)
        if short is None:
            raise
        hint = "" if name == "convert-layout" else "--backend convert-layout has it"
        raise UsageError(error.problem, where=short, expected=error.expected, found=short, hint=hint) from error
    except BackendError as error:
        if request.backend is None and name not in find_backends():
            error.hint = "the model records this backend; where its file or class is not installed, --backend names it"
        raise


def source_at(path: Path) -> Source:
    """The file, or for `-` all of stdin: ONNX as bytes, graph JSON as a dict. Raises InputError."""
    if path != STDIN:
        return path
    data = sys.stdin.buffer.read()
    if not data:
        raise InputError("it is empty", where="standard input", expected="an ONNX model or graph JSON", found="0 bytes")
    if data.lstrip()[:1] != b"{":
        return data
    from relayout.model.io import FORMATS

    # A protobuf that begins with this byte would have a field of a kind that a model has none of.
    return FORMATS[".json"].parse(data, "standard input")


def read_file(path: Path, source: Source | None = None, *, convert_opset: bool = True) -> ir.Model:
    """The model in a file; `source` is what was read of it already. Raises InputError, which names the file."""
    from relayout.model.io import read_model

    with naming(path):
        return read_model(source_at(path) if source is None else source, convert_opset=convert_opset)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an InputError about the model name its file."""
    try:
        yield
    except InputError as error:
        if path == STDIN:
            error.where = error.where.replace("the bytes given", "standard input")
        elif str(path) not in error.where:
            error.where = f"file {path}, {error.where}" if error.where else f"file {path}"
        raise


def legalize_file(
    path: Path,
    request: Request,
    backend: Backend,
    progress: Callable[[str], None],
    *,
    source: Source | None = None,
    time_for_search: Callable[[], float | None] = lambda: None,
    improved: Callable[[int, int], None] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
) -> Outcome:
    """The legal model of the file at `path`, with its report. Raises the errors of `relayout.legalize`.

    `source` is what was read of it already, and `time_for_search` the seconds that the solver has, once the model is
    read. `improved` is called with cost and bound of each better solution. `inputs` are those of the comparison. A name
    in the options that is not in the model is a UsageError.
    """
    from relayout.legalization import finish, legalize_model

    progress("read")
    source = source_at(path) if source is None else source
    model = read_file(path, source, convert_opset=request.convert_opset)
    # A number is TVM's count of convolutions, which the backend resolves.
    names = [name for name in request.skipped if not name.isdecimal()]
    known = {node.name for node in model.graph.all_nodes() if node.name} if names else set()
    if names and not known:
        raise UsageError(
            "the model's nodes have no names",
            where=f"--skip {names[0]}",
            expected="named nodes, or TVM's count of a convolution, such as 0",
            found="no name",
        )
    check_known("--skip {}", names, known, "node")
    left = time_for_search()
    options = request.options if left is None else replace(request.options, time_limit=left)
    outcome = legalize_model(model, backend, options, progress=progress, improved=improved)
    return finish(outcome, backend, request.options, source, inputs=inputs, progress=progress)


def legalize_file_of_folder(
    path: Path, request: Request, backend: Backend, progress: Callable[[str], None]
) -> tuple[Outcome, frozenset[str]]:
    """The legal model of a file of a folder, with its report, and its symbolic dims if sizes of dims are given.

    A name in the options that is not in the model is left out: another model may have it. Raises the errors of
    `relayout.legalize`.
    """
    from relayout.legalization import finish, legalize_model
    from relayout.model.dims.given_sizes import dim_names, sizes_in

    progress("read")
    source = source_at(path)
    model = read_file(path, source, convert_opset=request.convert_opset)
    dims = dim_names(model) if request.options.dims else frozenset()
    options = replace(request.options, dims=sizes_in(request.options.dims, model))
    outcome = legalize_model(model, backend, options, progress=progress)
    return finish(outcome, backend, options, source, progress=progress), dims


def check_dims_of_folder(dims: Mapping[str, int] | None, known: Collection[str]) -> None:
    """Raise UsageError for a size of a dim that is not among the known ones of the models of a folder."""
    check_known("--dim {}", dims or {}, known, "symbolic dim", "no model has a {} of this name")


def save(outcome: Outcome, source: Path, target: Path) -> None:
    """Write the legal model; if nothing changed and the format is the same, copy the source."""
    import shutil

    from relayout.model.external_data import is_in_file
    from relayout.model.io import write_model
    from relayout.model.onnx_file import replace_file

    constants = (value.const_value for value in outcome.model.graph.initializers.values())
    is_other = outcome.changed or source == STDIN or source.suffix != target.suffix
    if is_other or any(is_in_file(constant) for constant in constants):
        write_model(outcome.model, target, outcome.written)
    elif not (target.exists() and target.samefile(source)):
        with source.open("rb") as original, replace_file(target) as copy:
            shutil.copyfileobj(original, copy, _CHUNK)
