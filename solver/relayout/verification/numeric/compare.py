"""The comparison of a model with its original on the same random inputs: differences and sensitivity."""

from __future__ import annotations

from collections.abc import Set
from functools import partial

import onnx_ir as ir

from relayout.report.schema import Finding, NotCompared, Numeric
from relayout.verification.numeric.as_given import Unread, check_as_given
from relayout.verification.numeric.baseline import Feeds, drawn_anew, first_line, moved_by_inputs, run, variant
from relayout.verification.numeric.bodies import BodyOf
from relayout.verification.numeric.float64.verdict import Samples
from relayout.verification.numeric.inputs import with_weights
from relayout.verification.numeric.judgement import (
    UNDECIDED,
    Runs,
    findings_of,
    judged,
    left_out_findings,
    runs_of,
    undecided,
    undecided_behind_filters,
    vacuous,
    wider,
)
from relayout.verification.numeric.preparation import prepare
from relayout.verification.numeric.runtimes import LARGEST_COPY, largest_model, weights_size
from relayout.verification.numeric.symbolic_sizes import Sampling
from relayout.verification.numeric.tolerance import has_numbers, is_shape_shared

_KEPT_DIFFERS = "it differs where filters are made to keep elements, whose order rounding may decide"


def compare(
    model: ir.Model,
    original: ir.Model,
    opaque: Set[str],
    sampling: Sampling,
    given: tuple[object, object],
    body_of: BodyOf,
) -> tuple[list[Finding], Numeric]:
    """Run both models; return findings and figures. A model that cannot be run is a finding or a reason, no exception.

    `opaque` are the names of the model's values whose memory is not in the order of their shape: they are not compared.
    `given` are the sources that the model and its original were read from: where they are files, bytes or protobufs,
    they run too. `body_of` has the bodies of operators of a backend's own.
    """
    size, most = max(weights_size(model), weights_size(original)), largest_model()
    if size > most:
        return [], _skipped(f"{size} bytes of weights are more than the {most} that are run")
    try:
        mine, theirs = with_weights(model), with_weights(original)
    except ValueError as error:
        return [], _skipped(f"absent weights cannot be drawn: {error}")
    prepared = prepare(mine, theirs, opaque, sampling)
    if isinstance(prepared, str):
        return [], _skipped(f"the original cannot be run: {prepared}")
    outputs = {str(value.name) for value in prepared.model.graph.outputs}
    sources = {**{name: name for name in sorted(outputs - prepared.left_out.keys())}, **prepared.inner}
    try:
        runs = runs_of(prepared, sources, original, body_of)
    except NotImplementedError as error:
        # onnx.reference lacks the operators of runtimes, and onnxruntime did not run the original.
        return [], _skipped(f"the runtime lacks operators of the model: {first_line(error)}")
    except Exception as error:  # a runtime may raise anything
        fault, expected = first_line(error), "a model that runs as its original does"
        finding = Finding(rule="runtime", expected=expected, found=fault, message="the model does not run")
        return [finding], _skipped(f"the model cannot be run: {fault}")
    differences, float64 = judged(runs)
    # All is known of a result of no elements.
    empty = {str(value.name) for value in original.graph.outputs if 0 in (value.shape or ())}
    expected_of = {each.name: [sample[sources[each.name]] for sample in runs.expected] for each in differences}
    blind = {name for name, results in expected_of.items() if not has_numbers(results)} - empty
    behind_filters = undecided_behind_filters(runs, differences)
    unknown = undecided(differences)
    left_out = {
        **prepared.left_out,
        **dict.fromkeys(sorted(outputs & blind), "it has no finite element for any of the inputs drawn"),
        **{name: f"{_KEPT_DIFFERS}{wider(name, float64)}" for name in sorted(outputs & behind_filters)},
        **{name: f"{UNDECIDED}{wider(name, float64)}" for name in sorted(outputs & unknown)},
    }
    silent = behind_filters | unknown
    telling = [each for each in differences if each.name not in (silent if not each.passed else blind)]
    told = {each.name for each in telling}
    kept = tuple(name for name, behind in prepared.kept.items() if name in left_out and told.issuperset(behind))
    left_out = {name: reason for name, reason in left_out.items() if name not in kept}
    findings = [*prepared.notes, *left_out_findings(left_out), *findings_of(telling, outputs, float64)]
    # Of a result whose shape depends on the data, no two samples may have one shape.
    shared = {name for name, results in expected_of.items() if is_shape_shared(results)}
    # Results of no elements are equal in all samples, whatever their shapes.
    has_pairs = bool(shared) or not any(has_numbers(results) for results in expected_of.values())
    # Of an output that needs no run, the values before it are the comparison.
    judged_by = outputs.union(*(prepared.kept[name] for name in kept))
    moved = moved_by_inputs(prepared.original)
    watched = {name for name in judged_by & shared if sources[name] in moved}
    findings += vacuous(telling, watched, has_pairs=has_pairs)
    unread, not_run = _as_given(runs, given, left_out.keys() | drawn_anew(original))
    numeric = Numeric(
        status="compared" if telling else "skipped",
        reason=None if telling else "no output has a value that could be compared",
        runtime=prepared.baseline.runtime,
        samples=sampling.samples,
        seed=sampling.seed,
        outputs=tuple(
            each for each in telling if each.name in outputs or each.max_rel > each.tolerance or each.in_slice
        ),
        kept=kept,
        not_compared=tuple(NotCompared(name=name, reason=reason) for name, reason in left_out.items()),
        untried=(*prepared.baseline.untried, *not_run),
        float64=float64.text if float64 is not None else None,
    )
    return [*findings, *unread], numeric


def _as_given(runs: Runs, given: tuple[object, object], left_out: Set[str]) -> tuple[list[Finding], list[str]]:
    """The same of both models as they were given, in the first trial; of models that lack operators nothing is said."""
    prepared, baseline = runs.prepared, runs.prepared.baseline
    if any(note.rule == "cut" for note in prepared.notes):
        return [], []
    if max(map(weights_size, (prepared.model, prepared.original))) > LARGEST_COPY:
        return [], ["to run the models as they were given: their weights are too large to be copied"]
    first, runtime = baseline.trials[0], baseline.runtime

    def unread(title: str, source: object, read: ir.Model, feeds: Feeds, results: Samples) -> Unread:
        return Unread(title, source, feeds, results, partial(run, variant(read, first), runtime, (), feeds))

    original = unread("the original", given[1], prepared.original, first.feeds, first.results)
    model = unread("the model", given[0], prepared.model, runs.feeds[0], runs.found[: len(first.feeds)])
    return check_as_given(original, model, runtime, left_out, runs.quantized)


def _skipped(reason: str) -> Numeric:
    return Numeric(status="skipped", reason=reason)
