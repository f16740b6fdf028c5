"""One model through the command: read, legalize, check, write."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayout.cli.option_values import check_known
from relayout.errors import InputError

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend.interface import Backend
    from relayout.legalization import Options, Outcome

__all__ = ["STEPS", "Wanted", "backend_of", "dim_names", "legalize_file", "read_file", "save"]

# read, requirements, solve, rewrite, check, write
STEPS = 6
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for, of every model alike. `strict`: names that a model does not have are errors."""

    backend: Backend
    options: Options
    skip: Sequence[str] = ()
    check: bool = False
    inline: bool = False
    strict: bool = field(default=True)


def backend_of(
    spec: str | None, desired: Mapping[str, Sequence[str]], skip: Sequence[str], options: Mapping[str, Any]
) -> Backend:
    """The backend by name or file; `onnx` where none is named, or `convert-layout` where layouts are desired."""
    from relayout.backend.loading import load_backend
    from relayout.backend.options import gathered

    name = spec or ("convert-layout" if desired else "onnx")
    return load_backend(name, options=gathered(desired, skip, options))


def read_file(path: Path) -> ir.Model:
    """The model in a file. Raises InputError, which names the file."""
    from relayout.model.io import read_model

    try:
        return read_model(path)
    except InputError as error:
        if str(path) not in error.where:
            error.where = f"file {path}, {error.where}" if error.where else f"file {path}"
        raise


def legalize_file(path: Path, wanted: Wanted, tell: Callable[[str], None]) -> Outcome:
    """The legal model of the file at `path`, with its report. Raises what `relayout.legalize` raises."""
    from relayout.backend.calls import conversion_operators_of
    from relayout.legalization import Outcome, inline_functions, legalize_model
    from relayout.report.totals import totals

    tell("read")
    model = read_file(path)
    options = wanted.options
    if wanted.strict:
        # A number is TVM's count of its convolutions, as the backend understands it.
        named = [skipped for skipped in wanted.skip if not skipped.isdecimal()]
        check_known("--skip", named, _node_names(model), "node")
        check_known("--dim", options.dims or {}, dim_names(model), "symbolic dim")
    outcome = legalize_model(model, wanted.backend, options, progress=tell)
    report = outcome.report
    if wanted.check:
        from relayout.verification.verifier import verify

        tell("check")
        verification = verify(outcome.model, wanted.backend, against=path, dims=options.dims)
        report = report.model_copy(update={"verification": verification})
    if wanted.inline:
        inline_functions(outcome.model)
        after = totals(outcome.model, options.dims or {}, conversion_operators_of(wanted.backend))
        report = report.model_copy(update={"after": after})
    return Outcome(outcome.model, report, outcome.changed or wanted.inline)


def save(outcome: Outcome, source: Path, target: Path) -> None:
    """Write the legal model; where nothing changed and the format is the same, the source as it stands."""
    from relayout.model.external_data import is_in_file
    from relayout.model.io import write_model
    from relayout.model.onnx_file import replace_file

    constants = (value.const_value for value in outcome.model.graph.initializers.values())
    if outcome.changed or source.suffix != target.suffix or any(is_in_file(constant) for constant in constants):
        write_model(outcome.model, target)
    elif not (target.exists() and target.samefile(source)):
        with source.open("rb") as original, replace_file(target) as copy:
            shutil.copyfileobj(original, copy, _CHUNK)


def dim_names(model: ir.Model) -> set[str]:
    """The symbolic dims of the graph's inputs and of all that is computed from them."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {
        dim.value
        for value in values
        if value.shape is not None
        for dim in value.shape
        if not isinstance(dim, int) and dim.value is not None
    }


def _node_names(model: ir.Model) -> set[str]:
    return {node.name for node in model.graph.all_nodes() if node.name}
