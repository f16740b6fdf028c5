"""The entry functions: read, legalize, and finish (inline, count again, verify)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from relayout.backend.calls import conversion_operators_of, finished_by, prepared_by
from relayout.backend.interface import Backend
from relayout.backend.loading import load_backend
from relayout.model.collector import collector_paused
from relayout.model.io import Source, read_model, to_json, to_proto
from relayout.model.layout_functions import drop_unused
from relayout.model.normalize import inline
from relayout.model.rank_completion import drop_untyped_ranks
from relayout.model.tensor_sizes import price_dims
from relayout.options import Options, Progress, given_options, takes_options
from relayout.pipeline import describe, run
from relayout.report.drawing import DrawnChoice
from relayout.report.schema import Report
from relayout.report.totals import totals
from relayout.rewrite import sweep
from relayout.rewrite.annotations import annotate_boundary

__all__ = ["BackendSpec", "Options", "Outcome", "explain", "finish", "legalize", "legalize_model"]

BackendSpec = str | os.PathLike[str] | Mapping[str, Any] | Backend | type[Backend]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The legal model, its report, and whether it differs from the source. `choices` are the alternatives of every
    node by its label, if they were asked for."""

    model: ir.Model
    report: Report
    changed: bool
    choices: Mapping[str, DrawnChoice] = field(default_factory=dict)


@takes_options("legalize")
@collector_paused()
def legalize(
    model: Source, backend: BackendSpec = "onnx", *, progress: Progress | None = None, **options: Any
) -> tuple[Any, Report]:
    """The cheapest model that computes the same and is legal for `backend`, and the report.

    `model` is a path (.onnx or .json), ONNX bytes, an onnx.ModelProto, an onnx_ir.Model or graph JSON (a dict). The
    legal model comes back in the same kind; for a path or bytes as an onnx_ir.Model. The argument is never changed.
    `options` are fields of `Options`: `objective` ("bytes" or "transposes"), `input_layouts` and `output_layouts`
    ("NHWC", or "any": the solver chooses), `dims`, `time_limit`, `engine`, `backend_options`, `check` (verify the legal
    model against the source), `inline` (no function is left), `max_transposes` and `samples`.

    Raises InputError, UsageError, BackendError, InfeasibleError, OutOfTimeError.
    """
    asked = given_options("legalize", options)
    chosen = load_backend(backend, options=asked.backend_options)
    outcome = legalize_model(read_model(model), chosen, asked, progress=progress)
    outcome = finish(outcome, chosen, asked, model, progress=progress)
    if isinstance(model, onnx.ModelProto):
        return to_proto(outcome.model), outcome.report
    if isinstance(model, dict):
        return to_json(outcome.model), outcome.report
    return outcome.model, outcome.report


@takes_options("explain")
@collector_paused()
def explain(
    model: Source, backend: BackendSpec = "onnx", *, progress: Progress | None = None, **options: Any
) -> Report:
    """The report of `legalize` with the reasons for each remaining conversion: the requirements behind it, and the
    exact saving without each of them, for which the problem is solved again.

    `options` are fields of `Options`. At most `limit` problems are solved again; `report.explanation` has the number of
    the others. The errors are those of `legalize`. The argument is never changed.
    """
    asked = given_options("explain", options)
    chosen = load_backend(backend, options=asked.backend_options)
    return legalize_model(read_model(model), chosen, asked, progress=progress).report


@collector_paused()
def legalize_model(
    model: ir.Model,
    backend: Backend,
    options: Options,
    *,
    progress: Progress | None = None,
    improved: Callable[[int, int], None] | None = None,
    draws_choices: bool = False,
) -> Outcome:
    """Run the stages on a model, which is changed in place.

    `progress` is called with the name of each stage, and `improved` with cost and bound of each better solution.
    `draws_choices` asks for the alternatives of every node.
    """
    dims = dict(options.dims or {})
    operators = conversion_operators_of(backend)
    before = totals(model, dims, operators)
    elements = price_dims(model, dims)
    changed = prepared_by(backend, model)
    progress = progress or (lambda stage: None)
    result = run(model, backend, options, elements, progress, improved, draws_choices=draws_choices)
    if result.is_changed:
        drop_unused(model)
    finished = finished_by(backend, model)
    if finished:
        # The post-pass can leave nodes whose consumers were removed.
        sweep(model.graph)
    changed = finished or result.is_changed or changed
    after = totals(model, dims, operators) if changed else before
    report = describe(result, backend, before, after)
    layouts: dict[tuple[str, str], str | None] = {(v.side, v.name): v.layout for v in report.boundary}
    annotate_boundary(model.graph, layouts, result.plan.boundary.requested)
    drop_untyped_ranks(model)
    return Outcome(model, report, changed, result.choices)


def finish(
    outcome: Outcome, backend: Backend, options: Options, source: Source, *, progress: Progress | None = None
) -> Outcome:
    """Inline, count again and verify, as `options` require. Verification comes last, so it covers the returned model.

    `outcome` is what `legalize_model` made of `source` with the same backend and options; its model is changed in
    place. The body of a function does not state its layout, so the layout requirements are checked before inlining.
    """
    model, report, dims = outcome.model, outcome.report, dict(options.dims or {})
    inlines = options.inline and bool(model.functions)
    if options.check:
        from relayout.verification.verifier import verify

        if progress is not None:
            progress("check")
        stated = verify(model, backend).findings if inlines else ()
    if inlines:
        inline(model)
        report = report.model_copy(update={"after": totals(model, dims, conversion_operators_of(backend))})
    if options.check:
        verification = verify(model, backend, source, samples=options.samples, dims=dims)
        if inlines:
            others = [finding for finding in verification.findings if finding.rule != "layout-requirement"]
            findings = tuple(dict.fromkeys([*stated, *others]))
            passed = all(finding.severity != "error" for finding in findings)
            verification = verification.model_copy(update={"findings": findings, "passed": passed})
        report = report.model_copy(update={"verification": verification})
    return Outcome(model, report, outcome.changed or inlines, outcome.choices)
