"""The one door: read, require, formulate, solve, rewrite, report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from relayout.backend.calls import conversion_operators_of, finished_by, prepared_by
from relayout.backend.interface import Backend
from relayout.backend.loading import load_backend
from relayout.backend.options import gathered
from relayout.errors import UsageError
from relayout.model.io import Source, collector_paused, read_model, to_json, to_proto
from relayout.model.layout_functions import drop_unused
from relayout.model.normalize import inline
from relayout.model.tensor_sizes import price_dims
from relayout.options import BackendSpec, Options, Progress
from relayout.pipeline import Run, boundary_layouts, settle
from relayout.report.explain.savings import LIMIT
from relayout.report.schema import Report
from relayout.report.totals import totals
from relayout.rewrite import sweep

__all__ = ["Options", "Outcome", "explain", "inline_functions", "legalize", "legalize_model", "output_path"]



@dataclass(frozen=True, slots=True)
class Outcome:
    """The legal model, its report, and whether it differs from the source at all."""

    model: ir.Model
    report: Report
    changed: bool


def legalize(
    model: Source,
    backend: BackendSpec = "onnx",
    *,
    objective: str = "bytes",
    input_layouts: Mapping[str, str] | None = None,
    output_layouts: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    time_limit: float | None = None,
    engine: str = "auto",
    desired_layouts: Mapping[str, Sequence[str]] | None = None,
    skip: Sequence[str] = (),
    backend_options: Mapping[str, Any] | None = None,
    check: bool = False,
    inline: bool = False,
    max_transposes: int | None = None,
    progress: Progress | None = None,
) -> tuple[Any, Report]:
    """The cheapest model that computes the same and is legal for `backend`, and the report.

    `model` is a path (.onnx or .json), ONNX bytes, an onnx.ModelProto, an onnx_ir.Model or graph JSON (a dict). The
    legal model comes back in the same kind; for a path or bytes as an onnx_ir.Model. The argument is never changed.
    `input_layouts` and `output_layouts` set how graph inputs and outputs lie ("NHWC", or "any": the solver chooses).
    `backend_options` go to the backend, as do `desired_layouts` and `skip`, which `convert-layout` has. `check` runs
    the verifier against the source; `inline` replaces the `relayout::` functions by their bodies.

    Raises InputError, UsageError, BackendError, InfeasibleError, OutOfTimeError.
    """
    options = Options(objective, input_layouts, output_layouts, dims, time_limit, engine, max_transposes)
    chosen = load_backend(backend, options=gathered(desired_layouts, skip, backend_options))
    outcome = legalize_model(read_model(model), chosen, options, progress=progress)
    legal, report = outcome.model, outcome.report
    if check:
        from relayout.verification.verifier import verify

        report = report.model_copy(update={"verification": verify(legal, chosen, against=model)})
    if inline:
        inline_functions(legal)
        report = report.model_copy(update={"after": totals(legal, dict(dims or {}), conversion_operators_of(chosen))})
    if isinstance(model, onnx.ModelProto):
        return to_proto(legal), report
    if isinstance(model, dict):
        return to_json(legal), report
    return legal, report


@collector_paused()
def legalize_model(
    model: ir.Model, backend: Backend, options: Options, *, progress: Progress | None = None
) -> Outcome:
    """The stages, one after the other, on a model of our own that may be changed."""
    dims = dict(options.dims or {})
    operators = conversion_operators_of(backend)
    before = totals(model, dims, operators)
    elements = price_dims(model, dims)
    changed = prepared_by(backend, model)
    run = Run(model, backend, options, elements, progress or (lambda stage: None))
    run.legalize(*boundary_layouts(model, options.input_layouts, options.output_layouts))
    if run.changed:
        drop_unused(model)
    finished = finished_by(backend, model)
    if finished:
        # What one node now does left others behind that only those read which are gone.
        sweep(model.graph)
    changed = finished or run.changed or changed
    after = totals(model, dims, operators) if changed else before
    report = run.report(before, after)
    settle(model.graph, report.boundary)
    _forget_untyped(model)
    return Outcome(model, report, changed)


def _forget_untyped(model: ir.Model) -> None:
    """A value without a type cannot be written down with a shape: the rank that a rule gave it is for us alone."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.type is None:
                value.shape = None


def inline_functions(model: ir.Model) -> None:
    """Replace every `relayout::` operator by its body, for runtimes that know no functions."""
    inline(model)


def output_path(path: str | os.PathLike[str]) -> Path:
    """Where to write: the suffix says the format."""
    target = Path(path)
    if target.suffix not in (".onnx", ".json"):
        raise UsageError(
            "the suffix says the format", where=f"-o {target}", expected=".onnx or .json", found=target.suffix or "none"
        )
    return target



def explain(
    model: Source,
    backend: BackendSpec = "onnx",
    *,
    objective: str = "bytes",
    input_layouts: Mapping[str, str] | None = None,
    output_layouts: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    time_limit: float | None = None,
    engine: str = "auto",
    desired_layouts: Mapping[str, Sequence[str]] | None = None,
    skip: Sequence[str] = (),
    backend_options: Mapping[str, Any] | None = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Report:
    """The report of `legalize`, with the reasons for each conversion that is left: the requirements behind it, and what
    is saved where one of them is lifted, each found by solving the problem again.

    At most `limit` problems are solved for it; `report.explanation` says how many were left out. The other arguments
    and the errors are those of `legalize`. The argument is never changed.
    """
    options = Options(objective, input_layouts, output_layouts, dims, time_limit, engine, explain=limit)
    chosen = load_backend(backend, options=gathered(desired_layouts, skip, backend_options))
    return legalize_model(read_model(model), chosen, options, progress=progress).report
