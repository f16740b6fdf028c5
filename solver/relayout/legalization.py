"""The entry functions: read, legalize, and finish (inline, count again, verify)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import conversion_operators_of, finished_by, prepared_by, warnings_about
from relayout.backend.interface import Backend
from relayout.backend.loading import load_backend
from relayout.candidates.backend_requirements import unmet_packed
from relayout.errors import InfeasibleError, check_argument
from relayout.layout.metadata_keys import (
    BACKEND_KEY,
    BOUND_KEY,
    COST_KEY,
    INLINED_KEY,
    OBJECTIVE_KEY,
    SOURCE_HASH_KEY,
    VERSION_KEY,
)
from relayout.model.collector import collector_paused
from relayout.model.constants import constant_values
from relayout.model.dims.given_sizes import check_dims, sizes_in
from relayout.model.dims.output_dims import declare_names
from relayout.model.dims.rank_completion import drop_untyped_ranks
from relayout.model.io import Source, read_model, to_json, to_proto
from relayout.model.layout_functions import drop_unused, name_overloads
from relayout.model.metadata import record_backend
from relayout.model.normalize import inline
from relayout.model.onnx_file import Encoded, replace_file
from relayout.model.tensor_sizes import DimSizes
from relayout.model.unpacking import unpack
from relayout.ops import all_nodes
from relayout.options import ExplainOptions, LegalizeOptions, Options, Progress, given_options, takes_options
from relayout.pipeline import Result, describe, limit_of, run
from relayout.report.budget import within_budget
from relayout.report.schema import Report
from relayout.report.totals import totals
from relayout.rewrite import sweep
from relayout.rewrite.annotations import annotate_boundary, annotate_run
from relayout.solve.certificate import certificate_of

if TYPE_CHECKING:
    from relayout.report.drawing_schema import DrawnChoice

_Kept = TypeVar("_Kept", onnx.ModelProto, ir.Model, dict[str, Any])
"""The kinds of models that come back as they were given."""

BackendSpec = str | os.PathLike[str] | Mapping[str, Any] | Backend | type[Backend]


class Outcome(Struct, frozen=True):
    """The legal model, its report, whether it differs from the source, and with `certify` the solution written out.
    `choices` are the alternatives of every node by its label, if they were asked for. `written` is the model as the
    verification wrote it, whose constants may lack data (see `relayout.model.io.write_model`)."""

    model: ir.Model
    report: Report
    changed: bool
    certificate: Mapping[str, Any] | None = None
    choices: Mapping[str, DrawnChoice] = {}
    written: Encoded | None = None


@overload
def legalize(
    model: _Kept,
    backend: BackendSpec = "onnx",
    *,
    progress: Progress | None = None,
    certificate: str | os.PathLike[str] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    **options: Unpack[LegalizeOptions],
) -> tuple[_Kept, Report]: ...


@overload
def legalize(
    model: str | os.PathLike[str] | bytes,
    backend: BackendSpec = "onnx",
    *,
    progress: Progress | None = None,
    certificate: str | os.PathLike[str] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    **options: Unpack[LegalizeOptions],
) -> tuple[ir.Model, Report]: ...


@takes_options("legalize")
@collector_paused()
def legalize(
    model: Source,
    backend: BackendSpec = "onnx",
    *,
    progress: Progress | None = None,
    certificate: str | os.PathLike[str] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    **options: Unpack[LegalizeOptions],
) -> tuple[Any, Report]:
    """The cheapest model that computes the same and is legal for `backend`, and the report.

    `model` is a path (.onnx or .json), ONNX bytes, an onnx.ModelProto, an onnx_ir.Model or graph JSON (a dict). The
    legal model comes back in the same kind; for a path or bytes as an onnx_ir.Model. The argument is never changed.
    `options` are fields of `Options`: `objective` ("bytes" or "transposes"), `input_layouts` and `output_layouts`
    ("NHWC", or "any": the solver chooses), `dims`, `time_limit`, `engine`, `backend_options`, `verify` (off:
    no report of the verifier), `check` (compare the legal model with the source too), `static` (a comparison that could
    not be made is no error), `certify` (derive the proof again), `inline` (no function is left), `samples`, and the
    budget `max_transposes`, `max_conversions` and `max_bytes`. `certificate` is a file for the problem, the answer and
    the bound, from which `verify` derives the bound again; it implies `certify`. `inputs` take the place of random ones
    in the comparison, as in `verify`, and imply `check`.

    Raises InputError, UsageError, BackendError, InfeasibleError, OutOfTimeError.
    """
    implied = {**({"certify": True} if certificate is not None else {}), **({"check": True} if inputs else {})}
    asked = given_options("legalize", {**options, **implied})
    check_argument("progress", progress, Callable, "a function of the name of a stage")
    check_argument("certificate", certificate, (str, os.PathLike), "the path of a file")
    chosen = load_backend(backend, options=asked.backend_options)
    outcome = legalize_model(read_model(model), chosen, asked, progress=progress)
    outcome = finish(outcome, chosen, asked, model, inputs=inputs, progress=progress)
    if certificate is not None and outcome.certificate is not None:
        from relayout.verification.cost.certificate_findings import written_certificate

        with replace_file(Path(certificate)) as file:
            file.write(written_certificate(outcome.certificate).encode())
    if isinstance(model, onnx.ModelProto):
        return to_proto(outcome.model), outcome.report
    if isinstance(model, dict):
        return to_json(outcome.model), outcome.report
    return outcome.model, outcome.report


@takes_options("explain")
@collector_paused()
def explain(
    model: Source, backend: BackendSpec = "onnx", *, progress: Progress | None = None, **options: Unpack[ExplainOptions]
) -> Report:
    """The report of `legalize` with the reasons for each remaining conversion: the requirements behind it, and the
    exact saving without each of them, for which the problem is solved again.

    `options` are fields of `Options`. At most `limit` problems are solved again; `report.explanation` has the number of
    the others. The errors are those of `legalize`. The argument is never changed.
    """
    asked = given_options("explain", options)
    check_argument("progress", progress, Callable, "a function of the name of a stage")
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
    check_dims(dims, model)
    operators = conversion_operators_of(backend)
    nodes = [*all_nodes(model.graph)]
    elements = DimSizes(model, dims)
    before = totals(model, dims, operators, elements, nodes)
    warnings = warnings_about(backend, model, constant_values)
    changed = prepared_by(backend, model)
    if unmet := unmet_packed([*all_nodes(model.graph)] if changed else nodes, backend):
        unpack(model, unmet)
        changed = True
    del nodes  # those of a rewritten model are others
    progress = progress or (lambda stage: None)
    result = run(model, backend, options, elements, progress, improved, draws_choices=draws_choices)
    is_rewritten = result.written is not None
    if is_rewritten:
        drop_unused(model)
    finished = finished_by(backend, model)
    if finished:
        # The post-pass can leave nodes whose consumers were removed.
        sweep(model.graph)
    changed = finished or is_rewritten or changed
    nodes = [*all_nodes(model.graph)]
    # Before and after, and in the cost, a dim counts the same.
    counted = DimSizes(model, elements.counted) if changed else elements
    after = totals(model, elements.counted, operators, counted, nodes) if changed else before
    report = describe(result, backend, before, after, elements.assumed, {**elements.counted, **counted.counted})
    warnings = (*report.warnings, *warnings)
    warnings += tuple(_idle_devices(report, backend, warnings))
    report = report.model_copy(update={"warnings": tuple(dict.fromkeys(warnings))})
    layouts: dict[tuple[str, str], str | None] = {(v.side, v.name): v.layout for v in report.boundary}
    annotate_boundary(model.graph, layouts, result.answer.plan.boundary.requested)
    drop_untyped_ranks(nodes)
    if changed or BACKEND_KEY in model.metadata_props:
        # A model that was legal before relayout saw it stays as it is, byte for byte.
        changed = record_backend(model, backend.name, options.backend_options) or changed
    if changed:
        annotate_run(model, _facts(model, report))
    proof = _proof(model, result, backend, options) if options.certify else None
    return Outcome(model, report, changed, proof, result.choices)


def _idle_devices(report: Report, backend: Backend, warnings: Sequence[str]) -> Iterator[str]:
    """A warning for each device but the host that runs no node, where none says yet that no node fits it."""
    for each in report.devices:
        place = f"backend {backend.name}, device {each.device}: "
        if not each.nodes and each.device != backend.host() and not any(w.startswith(place) for w in warnings):
            yield f"{place}it runs no node, as no node costs less there; an assignment gives the costs elsewhere"


def _without_border_transposes(model: ir.Model, options: Options) -> ir.Model:
    """The legal model for ONNX's own layouts: the Transposes at the ends of inlined bodies cancel against each other.

    Inputs and outputs stay as they are. A model that has no such form, with black boxes, comes back as it is.
    """
    with suppress(InfeasibleError):
        # Values of the bodies have no shapes yet.
        again = read_model(model)
        dims = sizes_in(options.dims, again)
        return legalize_model(again, load_backend("onnx"), Options(dims=dims, time_limit=options.time_limit)).model
    return model


def _proof(model: ir.Model, result: Result, backend: Backend, options: Options) -> dict[str, Any]:
    """The certificate of the answer. `source_sha256` is as in the model's metadata, None for a model in memory."""
    formulation = result.answer.formulation
    problem, scale = formulation.problem, formulation.scale
    divisor = scale.divisor if scale.objective.unit == "bytes" else 1
    unit = scale.weights[scale.objective.unit], divisor
    # An answer that reuses copies is the cheapest without the limit, which it meets.
    most = None if problem.reuses_copies else limit_of(formulation, backend, options)[1]
    certificate = certificate_of(problem, result.answer.solution, most=most, unit=unit)
    return {**certificate, "source_sha256": _source_hash(model)}


def _source_hash(model: ir.Model) -> str | None:
    """The hash of the source. A legal model that is made legal again keeps the hash of the first source."""
    return model.metadata_props.get(SOURCE_HASH_KEY) or model.meta.get(SOURCE_HASH_KEY)


def _facts(model: ir.Model, report: Report) -> dict[str, str | int | None]:
    """The facts of a run that the legal model records. They are the same in each run."""
    return {
        VERSION_KEY: _version(),
        OBJECTIVE_KEY: report.objective,
        COST_KEY: report.cost,
        INLINED_KEY: None,
        BOUND_KEY: report.bound,
        SOURCE_HASH_KEY: _source_hash(model),
    }


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("relayout")


@collector_paused()
def finish(
    outcome: Outcome,
    backend: Backend,
    options: Options,
    source: Source,
    *,
    inputs: Sequence[Mapping[str, Any]] = (),
    progress: Progress | None = None,
) -> Outcome:
    """Inline, count again and verify, as `options` require. Verification covers the returned model: after it only the
    overloads of our functions are written as parts of their names, and names of output dims are declared, which reading
    undoes.

    `outcome` is what `legalize_model` made of `source` with the same backend and options; its model is changed in
    place. `inputs` are those of the comparison in place of random ones. The body of a function does not state its
    layout, and has conversions of its own, so the layout requirements and the cost are checked before inlining.
    """
    model, report, dims = outcome.model, outcome.report, dict(options.dims or {})
    written: Encoded | None = None
    inlines, verifies = options.inline and bool(model.functions), options.verify or options.check
    if verifies:
        from relayout.verification.onnx_checks import checked_by_onnx, with_those_of_original
        from relayout.verification.verifier import check_statically, verification_of, verify

        if progress is not None:
            progress("check")
        # A model that is read anew has no report to check, and an inlined one states no layouts.
        is_anew = inlines or options.check
        theirs, stated = partial(read_model, source), None
        if is_anew:
            found = with_those_of_original(checked_by_onnx(model)[0], theirs)
            stated = check_statically(model, backend, found, report=report, dims=dims)
    notes = outcome.changed or inlines
    if inlines:
        declare_names(model, notes=notes)
        inline(model)
        model = _without_border_transposes(model, options)
        annotate_run(model, {**_facts(model, outcome.report), INLINED_KEY: "true"})
        report = report.model_copy(update={"after": totals(model, report.sizes, conversion_operators_of(backend))})
    if verifies:
        if options.check:
            declare_names(model, notes=notes)
            given: dict[str, Any] = {
                "samples": options.samples,
                "dims": dims,
                "static": options.static,
                "inputs": inputs,
            }
            verification = verify(model, backend, source, **given)
        else:
            found, written = checked_by_onnx(model)
            found, original = with_those_of_original(found, theirs), theirs if outcome.changed else None
            unchecked = report if stated is None else None
            verification = check_statically(model, backend, found, report=unchecked, dims=dims, original=original)
        if stated is not None:
            # The report has the settings that fit nothing among its warnings.
            left_out = {"backend-settings", "price", *(["layout-requirement"] if inlines else [])}
            others = [finding for finding in verification.findings if finding.rule not in left_out]
            # It also lists the layouts of inputs and outputs.
            others = [each for each in others if (each.rule, each.severity) != ("boundary", "note")]
            verification = verification_of([*stated.findings, *others], verification.numeric, stated.price)
        report = report.model_copy(update={"verification": verification})
    # Both: an `or` would leave the second out.
    if any([name_overloads(model), declare_names(model, notes=notes)]):
        written = None
    report = within_budget(report, asdict(options))
    if outcome.certificate is not None:
        from relayout.verification.cost.certificate_findings import with_proof

        report = with_proof(report, outcome.certificate)
    return Outcome(model, report, outcome.changed or inlines, outcome.certificate, outcome.choices, written)
