"""The comparison of a model with its original piece by piece, where they do not run as a whole: see `pieces`.

A piece takes little memory, however large the model is. It is run as a whole model is: in the same runtimes, on data
drawn in the same way, with the same judgement of a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import onnx_ir as ir

from relayout.report.schema import Finding, NotCompared, Numeric, OutputDifference
from relayout.verification.counterparts import Counterparts
from relayout.verification.model_index import ModelIndex
from relayout.verification.numeric.baseline import Baseline, baseline_of, drawn_anew, first_line
from relayout.verification.numeric.bodies import BodyOf
from relayout.verification.numeric.cut import lacking
from relayout.verification.numeric.inputs import with_weights
from relayout.verification.numeric.judgement import (
    UNDECIDED,
    findings_of,
    judged,
    left_out_findings,
    runs_of,
    undecided,
    vacuous,
    wider,
)
from relayout.verification.numeric.kept_results import kept_behind, refused
from relayout.verification.numeric.pieces import Piece, model_of, pieces
from relayout.verification.numeric.preparation import RANDOM_RESULT, Prepared, cut_notes, shown
from relayout.verification.numeric.shapes_at_sizes import MOST_SIZES, is_as_declared, sized_reader
from relayout.verification.numeric.symbolic_sizes import Sampling, open_dims, plans
from relayout.verification.numeric.tolerance import has_numbers


def compare_in_pieces(
    model: ir.Model, original: ir.Model, opaque: Set[str], sampling: Sampling, reason: str, body_of: BodyOf
) -> tuple[list[Finding], Numeric]:
    """Run the pieces of both models; return findings and figures.

    An output is compared if its piece is, and those of all values behind it. The arguments are those of `compare`;
    `reason` says why the models do not run as a whole.
    """
    theirs_lack, mine_lacks = lacking(original), lacking(model)
    faults: list[str] = []
    for mine, theirs, sizes in _at_sizes(model, original, sampling.dims):
        both = Counterparts(ModelIndex(mine), ModelIndex(theirs))
        outcomes: _Outcomes = {}
        for piece in pieces(both, opaque, theirs_lack | mine_lacks):
            outcomes.setdefault(piece.value, []).append(_run(piece, mine, theirs, sampling, body_of, opaque))
        refusals = [each.fault for found in outcomes.values() for each in found if each.is_refused and each.fault]
        # Sizes at which the original does not run say nothing of the model.
        if sizes and refusals:
            faults += refusals
            continue
        found, outputs, kept, left_out = _judgement(mine, theirs, outcomes, opaque)
        compared = [each.difference for ended in outcomes.values() for each in ended if each.difference is not None]
        if not compared or not (outputs or kept):
            return found, _skipped(reason, next(iter(left_out.values()), "there is nothing to run"))
        numeric = Numeric(
            status="compared",
            samples=sampling.samples,
            seed=sampling.seed,
            outputs=tuple(outputs),
            kept=tuple(kept),
            not_compared=tuple(NotCompared(name=name, reason=fault) for name, fault in left_out.items()),
            untried=(f"to run the models as a whole: {reason}", *([f"other sizes than {sizes}"] if sizes else ())),
            pieces=len(compared),
        )
        notes = cut_notes(theirs_lack, mine_lacks, len(compared))
        return [
            *notes,
            *found,
            *left_out_findings(left_out),
            *vacuous(compared, {each.name for each in outputs}.union(*kept.values())),
        ], numeric
    return [], _skipped(reason, faults[0] if faults else "the shapes fit at none of the sizes tried")


def _judgement(
    model: ir.Model, original: ir.Model, outcomes: _Outcomes, opaque: Set[str]
) -> tuple[list[Finding], list[OutputDifference], dict[str, set[str]], dict[str, str]]:
    """The findings on the pieces, the differences of the outputs that are compared, the outputs that need no run with
    the values that they are made from, and why the others are not compared."""

    def differences(value: ir.Value, source: ir.Value) -> list[OutputDifference]:
        return [each.difference for each in outcomes.get(value, ()) if each.source is source and each.difference]

    def is_compared(value: ir.Value, source: ir.Value) -> bool:
        return bool(differences(value, source))

    left_out: dict[str, str] = {}
    outputs: list[OutputDifference] = []
    kept: dict[str, set[str]] = {}
    functions = model.functions.keys() | original.functions.keys()
    for value, theirs in zip(model.graph.outputs, original.graph.outputs, strict=True):
        own, fault = differences(value, theirs), _fault_behind(value, outcomes)
        if fault is not None:
            left_out[str(value.name)] = fault
        elif own:
            outputs += own
        elif (behind := kept_behind(value, theirs, is_compared, opaque, functions)) is not None:
            kept[str(value.name)] = behind
        else:
            left_out[str(value.name)] = "no runtime has the operator that computes it"
    findings = [finding for found in outcomes.values() for each in found for finding in each.findings]
    return findings, outputs, kept, left_out


def _skipped(reason: str, fault: str) -> Numeric:
    return Numeric(status="skipped", reason=f"{reason}; in pieces: {fault}")


@dataclass(frozen=True)
class _Outcome:
    """The outcome of one piece: a difference, or the fault for which there is none; neither if both parts are the same.
    `source` is the original's value, and `given` are the values that the model's part is given. `is_refused`: the
    original's part does not run."""

    source: ir.Value
    given: tuple[ir.Value, ...]
    difference: OutputDifference | None = None
    fault: str | None = None
    findings: tuple[Finding, ...] = ()
    is_refused: bool = False


_Outcomes = dict[ir.Value, list[_Outcome]]
"""Those of the pieces that end in each value of the model: one that stands for a value may be read as another."""


def _fault_behind(output: ir.Value, outcomes: _Outcomes) -> str | None:
    """Why the output is not compared: the fault of the first piece behind it that has one; None without any."""
    seen, pending = {output}, [output]
    while pending:
        value = pending.pop()
        found, node = outcomes.get(value, []), value.producer()
        fault = next((each.fault for each in found if each.fault is not None), None)
        if fault is not None:
            return fault
        # A result of an operator that no runtime has is the original's if the operands are.
        inputs = node.inputs if node is not None and not found else ()
        new = [each for each in chain(inputs, *(each.given for each in found)) if each is not None and each not in seen]
        seen.update(new)
        pending += new
    return None


def _at_sizes(
    model: ir.Model, original: ir.Model, dims: Mapping[str, int] | None
) -> Iterator[tuple[ir.Model, ir.Model, str]]:
    """Both models with the same sizes for the open dims of their inputs, for each set of sizes to try, and these as a
    text; "" without open dims."""
    names = open_dims(original, None)
    if not names:
        yield model, original, ""
        return
    mine, theirs = sized_reader(model), sized_reader(original)
    for plan in islice(plans(original, dims), MOST_SIZES):
        wanted = theirs(plan.extents)
        if isinstance(wanted, ir.Model) and is_as_declared(original, wanted, plan.extents):
            found = mine(plan.extents)
            if isinstance(found, ir.Model):
                yield found, wanted, ", ".join(f"{name} = {plan.extents[name]}" for name in names)


def _run(
    piece: Piece, model: ir.Model, original: ir.Model, sampling: Sampling, body_of: BodyOf, opaque: Set[str]
) -> _Outcome:
    """Run both parts of the piece. Where no runtime runs the original's, the model's may be the same."""

    def unrun(fault: str, is_refused: bool = False) -> _Outcome:
        functions = model.functions.keys() | original.functions.keys()
        kept = kept_behind(piece.value, piece.source, is_given, opaque, functions)
        return outcome() if kept is not None else outcome(fault=fault, is_refused=is_refused)

    def is_given(value: ir.Value, other: ir.Value) -> bool:
        return piece.sources.get(value) is other

    name, source = str(piece.value.name), str(piece.source.name)
    outcome = partial(_Outcome, piece.source, tuple(piece.sources))
    if piece.mine is None or piece.theirs is None:
        return outcome(fault=f"too many operators are needed to compute {name}")
    unpaired = [str(value.name) for value in piece.mine.given if value not in piece.sources]
    if unpaired:
        return outcome(fault=f"{name} depends on {unpaired[0]}, which stands for no value of the original")
    try:
        mine = with_weights(model_of(piece.mine, piece.value, model))
        theirs = with_weights(model_of(piece.theirs, piece.source, original))
    except ValueError as error:
        return outcome(fault=f"absent weights cannot be drawn: {error}")
    if absent := lacking(mine) | lacking(theirs):
        return unrun(f"{name} depends on {shown(absent)}, which no runtime has")
    if drawn_anew(theirs):
        return outcome(fault=RANDOM_RESULT)
    baseline = baseline_of(theirs, (), replace(sampling, dims=None, given=()))
    if not isinstance(baseline, Baseline):
        fault = f"{source} cannot be computed: {'; '.join(baseline)}"
        if refused(model, original, baseline[0]):
            return unrun(fault, is_refused=True)
        return outcome(fault=fault, is_refused=True)
    supplied = {str(each.name): str(other.name) for each, other in piece.sources.items()}
    prepared = Prepared(mine, theirs, baseline, supplied)
    try:
        runs = runs_of(prepared, {name: source}, theirs, body_of)
    except NotImplementedError as error:
        return outcome(fault=f"the runtime lacks operators of the model: {first_line(error)}")
    except Exception as error:  # a runtime may raise anything
        finding = Finding(
            rule="runtime",
            node=name,
            expected="operators that run as those of the original do",
            found=first_line(error),
            message=f"the operators that compute {name} do not run",
        )
        return outcome(fault=finding.message, findings=(finding,))
    [difference], float64 = judged(runs)
    if undecided([difference]):
        return outcome(fault=f"{source}: {UNDECIDED}{wider(name, float64)}")
    is_blind = difference.passed and not has_numbers([sample[source] for sample in runs.expected])
    if is_blind and 0 not in (piece.source.shape or ()):
        return outcome(fault=f"{source} has no finite element for any of the inputs drawn")
    outputs = {str(value.name) for value in model.graph.outputs}
    return outcome(difference=difference, findings=tuple(findings_of([difference], outputs, float64)))
