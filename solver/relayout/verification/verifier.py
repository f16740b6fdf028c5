"""The verifier: infer every layout again, compare with the backend's requirements, run the model and its original.

It imports none of the packages that made the model: candidates, formulate, solve, rewrite.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from numbers import Integral
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from relayout.backend.calls import conversion_operators_of, opaque_values_of, violations_of, warnings_about
from relayout.backend.failures import guarded
from relayout.backend.interface import Backend
from relayout.backend.loading import load_backend
from relayout.errors import InputError, RelayoutError, UsageError, check_argument
from relayout.layout.metadata_keys import COST_KEY, SOURCE_HASH_KEY
from relayout.model.collector import collector_paused
from relayout.model.constants import remembering_constants
from relayout.model.dims.given_sizes import check_dims
from relayout.model.io import Source, read_model, warnings_of
from relayout.model.metadata import recorded_backend
from relayout.model.onnx_file import Parsed
from relayout.report.budget import over_budget
from relayout.report.schema import Finding, Numeric, Price, Report, Severity, Verification, check_report_type
from relayout.verification.annotations import check_annotations
from relayout.verification.axis_classes import CommonNames
from relayout.verification.axis_names import derive
from relayout.verification.boundary import check_boundary, note_layouts
from relayout.verification.constants import constants_of
from relayout.verification.cost.accounting import check_report, check_sizes, sizes_of
from relayout.verification.cost.price import check_price, check_recorded_price
from relayout.verification.counterparts import Counterparts, Original
from relayout.verification.counting import count
from relayout.verification.devices import check_placement
from relayout.verification.function_bodies import check_functions
from relayout.verification.listed_layouts import check_listed_layouts
from relayout.verification.model_index import ModelIndex
from relayout.verification.numeric.given_inputs import checked_inputs
from relayout.verification.numeric.shapes_at_sizes import check_shapes_at_sizes
from relayout.verification.numeric.symbolic_sizes import Sampling, open_dims
from relayout.verification.onnx_checks import (
    check_axes,
    check_channels,
    checked_by_onnx,
    with_those_of_original,
)
from relayout.verification.operator_facts import enter_backend_operators
from relayout.verification.requirements import Charges, check_requirements, node_label

if TYPE_CHECKING:
    from pathlib import Path

_RANK = {"error": 0, "warning": 1, "note": 2}


@collector_paused()
@remembering_constants()
def verify(
    model: Source,
    backend: str | Path | Mapping[str, Any] | Backend | type[Backend] | None = None,
    against: Source | Original | None = None,
    *,
    samples: int = 2,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    report: Report | None = None,
    run: bool = True,
    static: bool = False,
    backend_options: Mapping[str, Any] | None = None,
    max_transposes: int | None = None,
    max_conversions: int | None = None,
    max_bytes: int | None = None,
    certificate: str | os.PathLike[str] | None = None,
) -> Verification:
    """Return all faults of `model` for `backend`, as findings. None is the backend that a legal model records.

    With `against`, the original, the boundaries, operators, operands and constants are compared; an `Original` is
    read once for all models that are verified against it. Unless `run` is false, both are run on `samples` seeded
    random inputs; `dims` gives sizes to symbolic dims of either. `inputs` take the place of random ones: for each
    sample, an array in the original's shape for each of its inputs, by name. Where no run compares them, an
    operator that computes must be one of the original's, or stand for one, which a note says. With `report`, its
    numbers, with the sizes that it states, and its layouts of inputs and outputs are checked too. A comparison that
    could not be made is an error, or a note where `static` says that the rest is enough. `certificate` is a file that
    legalization wrote: its bound is derived again from the file alone, and its cost must be the model's.
    `backend_options` go to the backend. Raises InputError for an invalid model, UsageError for a dim of no model,
    inputs that do not fit, a `report` of another type, and where no backend is given or recorded, BackendError for a
    backend that fails; a wrong model is data.
    """
    from relayout.verification.against_original import check_against, check_unrun

    limits = {"max_transposes": max_transposes, "max_conversions": max_conversions, "max_bytes": max_bytes}
    for name, number in {"seed": seed, **limits}.items():
        check_argument(name, number, Integral, "a whole number")
    for name, mapping in {"dims": dims, "backend_options": backend_options}.items():
        check_argument(name, mapping, Mapping, "a mapping of names to values")
    check_argument("certificate", certificate, (str, os.PathLike), "the path of a file")
    if not isinstance(samples, int) or samples < 1:
        raise UsageError("too few samples", where="samples", expected="a whole number, at least 1", found=repr(samples))
    if inputs and (against is None or not run):
        expected = "an original to compare with, and a run"
        raise UsageError("inputs without a comparison", where="inputs", expected=expected, found="none")
    if report is not None:
        check_report_type(report)
    findings: list[Finding] = []
    subject, faults = _readable(model)
    if backend is None:
        backend, backend_options = recorded_backend(subject, backend_options)
    chosen = load_backend(backend, options=backend_options)
    findings += faults
    # The file is another model than the one that is checked.
    findings += [Finding(rule="reading", severity="warning", message=text) for text in warnings_of(subject)]
    for text in warnings_about(chosen, subject, constants_of):
        findings.append(Finding(rule="backend-settings", severity="warning", message=text))
    shared = against if against is None or isinstance(against, Original) else Original(against)
    theirs = shared.index_for(chosen) if shared is not None else None
    original = theirs.model if theirs is not None else None
    index = ModelIndex(subject)
    pairs = Counterparts(index, theirs) if theirs is not None else None
    if not faults:
        check_dims(dims, *(each for each in (subject, original) if each is not None))
        enter_backend_operators(index.nodes, chosen)
    charges: Charges = {}
    price: Price | None = None
    numeric: Numeric | None = None
    with _as_far_as_it_goes(faults):
        objections = checked_by_onnx(subject)[0]
        if theirs is not None:
            objections = with_those_of_original(objections, lambda: theirs.model)
        findings += _static(index, chosen, charges, objections)
    with _as_far_as_it_goes(faults):
        if pairs is not None:
            findings += check_against(pairs, chosen, run=run)
            findings += note_layouts(subject, pairs.original.model) if report is None else ()
    with _as_far_as_it_goes(faults):
        if report is not None:
            findings += _other_backend(report, chosen)
            findings += check_boundary(report, subject)
            derivation = derive(index, CommonNames(index).written)
            findings += check_listed_layouts(report, subject, original, derivation)
            sizes = sizes_of(report, dims)
            findings += check_sizes(report, subject)
            findings += check_report(report, subject, original, sizes, conversion_operators_of(chosen))
            found, price = check_price(report, index, chosen, charges, sizes)
            findings += found
        elif not faults:
            found, price = check_recorded_price(index, chosen, charges, dims)
            findings += found
    if certificate is not None:
        findings += _proof(subject, report, certificate)
    with _as_far_as_it_goes(faults):
        if any(limit is not None for limit in limits.values()):
            findings += over_budget(limits, count(subject, dims or {}, conversion_operators_of(chosen)))
    with _as_far_as_it_goes(faults):
        # A model that could not be read is not run: onnxruntime ends the process for some faults.
        if shared is not None and original is not None and run and not faults:
            feeds = checked_inputs(original, inputs)
            sampling = Sampling(len(feeds) or samples, seed, dims, feeds)
            found, numeric = _numeric(subject, original, chosen, findings, sampling, (model, shared.source))
            severity: Severity = "note" if static else "error"
            findings += [
                each.model_copy(update={"severity": severity}) if each.rule == "not-compared" else each
                for each in found
            ]
            if not any(finding.severity == "error" for finding in findings):
                findings += _not_compared(numeric, severity, open_dims(original, dims))
    in_pieces = numeric is not None and numeric.pieces is not None
    if pairs is not None and not faults and (numeric is None or in_pieces or numeric.status != "compared"):
        findings += check_shapes_at_sizes(subject, lambda: pairs.original.model, dims)
        are_all = numeric is not None and numeric.status == "compared" and not numeric.not_compared
        findings += check_unrun(pairs, chosen) if run and not are_all else ()
    return verification_of(findings, numeric, price)


@remembering_constants()
def check_statically(
    model: ir.Model,
    backend: Backend,
    by_onnx: Sequence[Finding],
    *,
    report: Report | None = None,
    dims: Mapping[str, int] | None = None,
    original: Callable[[], ir.Model] | None = None,
) -> Verification:
    """All faults of a model in memory, as legalization leaves it, that show without running it. Raises BackendError.

    With `report`, the parts of the model's cost are computed again too; `dims` gives sizes to symbolic dims. With
    `original`, the shapes of a model with open dims are inferred anew at sizes for them. All else neither reads the
    model anew nor changes it, so this is cheap. `by_onnx` are the findings of `checked_by_onnx`.
    """
    index = ModelIndex(model)
    enter_backend_operators(index.nodes, backend)
    charges: Charges = {}
    findings = list(_static(index, backend, charges, by_onnx))
    if original is not None:
        findings += check_shapes_at_sizes(model, original, dims, is_fresh=True)
    if report is None:
        return verification_of(findings)
    found, price = check_price(report, index, backend, charges, sizes_of(report, dims))
    return verification_of([*findings, *check_boundary(report, model, is_fresh=True), *found], price=price)


def verification_of(
    findings: Iterable[Finding], numeric: Numeric | None = None, price: Price | None = None
) -> Verification:
    """The verdict on these findings, errors first."""
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: _RANK[finding.severity])
    passed = all(finding.severity != "error" for finding in ordered)
    return Verification(passed=passed, findings=tuple(ordered), numeric=numeric, price=price)


def _other_backend(report: Report, backend: Backend) -> Iterator[Finding]:
    if report.backend != backend.name:
        message = "the report is for another backend: its cost and its proof say nothing of this one"
        yield Finding(rule="status", severity="warning", expected=backend.name, found=report.backend, message=message)


def _proof(model: ir.Model, report: Report | None, path: str | os.PathLike[str]) -> Iterator[Finding]:
    """The verdict on the certificate in a file. Its cost must be the report's, or else what the model records."""
    from relayout.verification.cost.certificate_findings import check_certificate, read_certificate

    recorded = model.metadata_props.get(COST_KEY, "")
    cost = report.cost if report is not None else int(recorded) if recorded.isdecimal() else None
    where = f"--certificate {os.fspath(path)}"
    yield from check_certificate(read_certificate(path), cost, model.metadata_props.get(SOURCE_HASH_KEY), where)
    if cost is None:
        message = "the model records no cost, so the certificate may be of another answer"
        yield Finding(rule="certificate", severity="warning", expected=COST_KEY, found="none", message=message)


def _not_compared(numeric: Numeric, severity: Severity, open_: Sequence[str]) -> Iterator[Finding]:
    """A finding where the two models were to be compared and were not; `open_` are the dims of the sizes tried."""
    if numeric.status != "skipped":
        return
    package = "" if find_spec("onnxruntime") else '; onnxruntime is not installed: pip install "relayout[check]"'
    ways = [f"--dim (options.dims) sets the sizes of {', '.join(open_)}"] if open_ and not package else []
    if not package:
        ways.append("--inputs (the argument inputs) gives others where it refuses random inputs")
    ways.append("with --static (options.static) the other checks are enough")
    yield Finding(
        rule="not-compared",
        severity=severity,
        expected="results of both models on the same inputs",
        found=f"{numeric.reason}{package}",
        message=f"the model was not compared with the original; {', and '.join(ways)}",
    )


def _readable(model: Source) -> tuple[ir.Model, list[Finding]]:
    """The model after reading; if its parts contradict each other, the unchanged model and a finding."""
    try:
        return read_model(model, bodies=False), []
    except InputError as error:
        model = model.whole() if isinstance(model, Parsed) else model
        if isinstance(model, ir.Model):
            raw = model
        elif isinstance(model, onnx.ModelProto) and (made := _as_it_stands(model)) is not None:
            raw = made
        else:
            raise
        text = f"{error.where}: {error.problem}" if error.where else error.problem
        finding = Finding(rule="shape", expected=error.expected, found=error.found, message=text)
        return raw, [finding]


@contextmanager
def _as_far_as_it_goes(faults: Sequence[Finding]) -> Iterator[None]:
    """A check of a model that could not be read may fail in any way: its parts contradict each other."""
    try:
        yield
    except RelayoutError:
        raise
    except Exception:
        if not faults:
            raise


def _as_it_stands(proto: onnx.ModelProto) -> ir.Model | None:
    try:
        return ir.from_proto(proto)
    except Exception:  # onnx_ir may raise anything for an invalid graph
        return None


def _static(index: ModelIndex, backend: Backend, charges: Charges, by_onnx: Sequence[Finding]) -> Iterator[Finding]:
    model = index.model
    yield from by_onnx
    common = CommonNames(index)
    derivation = derive(index, common.written)
    yield from check_channels(index)
    yield from check_axes(index.nodes)
    yield from check_functions(index, conversion_operators_of(backend))
    yield from check_annotations(index, derivation, common)
    yield from check_requirements(index, backend, derivation, common, charges)
    yield from check_placement(index, backend)
    yield from _check_by_backend(model, backend)


def _check_by_backend(model: ir.Model, backend: Backend) -> Iterator[Finding]:
    for each in violations_of(backend, model):
        with guarded(backend, "check"):
            yield Finding(
                rule=each.rule,
                node=node_label(each.node),
                operand=each.operand,
                expected=each.expected,
                found=each.found,
                message=each.message,
            )


def _numeric(
    model: ir.Model,
    original: ir.Model,
    backend: Backend,
    findings: list[Finding],
    sampling: Sampling,
    given: tuple[Source, Source | None],
) -> tuple[list[Finding], Numeric]:
    from relayout.verification.numeric.bodies import bodies_of, body_notes, with_bodies
    from relayout.verification.numeric.compare import compare
    from relayout.verification.numeric.in_pieces import compare_in_pieces

    if any(finding.rule == "boundary" and finding.severity == "error" for finding in findings):
        return [], Numeric(status="skipped", reason="the boundaries differ")
    opaque = {str(value.name) for value in opaque_values_of(backend, model)}
    body_of = bodies_of(backend)
    mine, replaced = with_bodies(model, body_of)
    theirs, theirs_replaced = with_bodies(original, body_of)
    # A model with replaced operators does not run as it was given.
    sources = None if replaced else given[0], None if theirs_replaced else given[1]
    found, numeric = compare(mine, theirs, opaque, sampling, sources, body_of)
    found = [*body_notes(replaced | theirs_replaced), *found]
    # A piece has other inputs than those that are given.
    is_done = numeric.status == "compared" or bool(sampling.given)
    if is_done or any(finding.severity == "error" for finding in (*findings, *found)):
        return found, numeric
    more, numeric = compare_in_pieces(mine, theirs, opaque, sampling, str(numeric.reason), body_of)
    return [*found, *more], numeric
