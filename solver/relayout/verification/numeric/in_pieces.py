"""The comparison of a model with its original piece by piece, where they do not run as a whole: see `pieces`.

A piece takes little memory, however large the model is. It is run as a whole model is: in the same runtimes, on data
drawn in the same way, with the same judgement of a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice

import onnx_ir as ir

from relayout.report.schema import Finding, NotCompared, Numeric, OutputDifference
from relayout.verification.axis_names import fed
from relayout.verification.model_index import ModelIndex
from relayout.verification.numeric.baseline import Baseline, baseline_of, behind, drawn_anew, first_line
from relayout.verification.numeric.cut import lacking
from relayout.verification.numeric.inputs import with_weights
from relayout.verification.numeric.judgement import (
    RANDOM_RESULT,
    Runs,
    findings_of,
    judged,
    left_out_findings,
    quantizes,
    results_of,
    vacuous,
)
from relayout.verification.numeric.pieces import Piece, model_of, pieces
from relayout.verification.numeric.preparation import Prepared, shown
from relayout.verification.numeric.shapes_at_sizes import is_as_declared, sized_reader
from relayout.verification.numeric.symbolic_sizes import open_dims, plans
from relayout.verification.numeric.tolerance import has_numbers

__all__ = ["compare_in_pieces"]

_MOST_SIZES = 8


def compare_in_pieces(
    model: ir.Model,
    original: ir.Model,
    opaque: Set[ir.Value] = frozenset(),
    *,
    samples: int,
    seed: int,
    dims: Mapping[str, int] | None,
    reason: str,
) -> tuple[list[Finding], Numeric]:
    """Run the pieces of both models; return findings and figures.

    An output is compared if its piece is, and those of all values behind it. The arguments are those of `compare`;
    `reason` says why the models do not run as a whole.
    """
    names = {str(value.name) for value in opaque}
    unknown = lacking(model) | lacking(original)
    faults: list[str] = []
    for mine, theirs in _at_sizes(model, original, dims):
        both = ModelIndex(mine), ModelIndex(theirs)
        outcomes = {each.value: _run(each, mine, theirs, samples, seed) for each in pieces(*both, names, unknown)}
        # Sizes at which the original does not run say nothing of the model.
        if mine is model or not any(each.is_refused for each in outcomes.values()):
            found, numeric = _judgement(mine, outcomes, reason, samples, seed)
            return found, numeric
        faults += [each.fault for each in outcomes.values() if each.is_refused and each.fault is not None]
    return [], _skipped(f"{reason}; in pieces: {faults[0] if faults else 'its shapes fit at none of the sizes tried'}")


def _judgement(
    model: ir.Model, outcomes: Mapping[ir.Value, _Outcome], reason: str, samples: int, seed: int
) -> tuple[list[Finding], Numeric]:
    """The findings on the outcomes by value, and the figures."""
    found = [finding for each in outcomes.values() for finding in each.findings]
    faults = {value: _fault_behind(value, outcomes) for value in model.graph.outputs}
    left_out = {str(value.name): fault for value, fault in faults.items() if fault is not None}
    compared = [each.difference for each in outcomes.values() if each.difference is not None]
    outputs = [outcomes[value].difference for value, fault in faults.items() if fault is None]
    numeric = Numeric(
        status="compared" if outputs else "skipped",
        reason=None if outputs else reason,
        samples=samples,
        seed=seed,
        outputs=tuple(each for each in outputs if each is not None),
        not_compared=tuple(NotCompared(name=name, reason=fault) for name, fault in left_out.items()),
        untried=(f"to run the models as a whole ({reason}); they ran in {len(compared)} pieces",),
        pieces=len(compared),
    )
    if not outputs:
        return found, numeric
    return [*found, *left_out_findings(left_out), *vacuous(compared)], numeric


@dataclass(frozen=True)
class _Outcome:
    """The outcome of one piece: a difference, or the fault for which there is none. `given` are the values that it is
    given. `is_refused`: the original's part does not run."""

    given: tuple[ir.Value, ...]
    difference: OutputDifference | None = None
    fault: str | None = None
    findings: tuple[Finding, ...] = ()
    is_refused: bool = False


def _fault_behind(output: ir.Value, outcomes: Mapping[ir.Value, _Outcome]) -> str | None:
    """Why the output is not compared: the fault of the first piece behind it that has one; None without any."""
    if output not in outcomes:
        return "no runtime has the operator that computes it"
    seen, pending = {output}, [output]
    while pending:
        value = pending.pop()
        outcome, node = outcomes.get(value), value.producer()
        if outcome is not None and outcome.fault is not None:
            return outcome.fault
        # A result of an operator that no runtime has is the original's if the operands are.
        reads = outcome.given if outcome is not None else node.inputs if node is not None else ()
        new = [each for each in reads if each is not None and each not in seen]
        seen.update(new)
        pending += new
    return None


def _at_sizes(
    model: ir.Model, original: ir.Model, dims: Mapping[str, int] | None
) -> Iterator[tuple[ir.Model, ir.Model]]:
    """Both models with the same sizes for the open dims of their inputs, for each set of sizes to try."""
    if not open_dims(fed(original), None):
        yield model, original
        return
    mine, theirs = sized_reader(model), sized_reader(original)
    for plan in islice(plans(original, fed(original), dims), _MOST_SIZES):
        wanted = theirs(plan.extents)
        if isinstance(wanted, ir.Model) and is_as_declared(original, wanted, plan.extents):
            found = mine(plan.extents)
            if isinstance(found, ir.Model):
                yield found, wanted


def _run(piece: Piece, model: ir.Model, original: ir.Model, samples: int, seed: int) -> _Outcome:
    """Run both parts of the piece."""
    name, source, given = str(piece.value.name), str(piece.source.name), tuple(piece.sources)
    if piece.mine is None or piece.theirs is None:
        return _Outcome(given, fault=f"too many operators are needed to compute {name}")
    unpaired = [str(value.name) for value in piece.mine.given if value not in piece.sources]
    if unpaired:
        return _Outcome(given, fault=f"{name} depends on {unpaired[0]}, which stands for no value of the original")
    try:
        mine = with_weights(model_of(piece.mine, piece.value, model))
        theirs = with_weights(model_of(piece.theirs, piece.source, original))
    except ValueError as error:
        return _Outcome(given, fault=f"absent weights cannot be drawn: {error}")
    if absent := lacking(mine) | lacking(theirs):
        return _Outcome(given, fault=f"{name} depends on {shown(absent)}, which no runtime has")
    if drawn_anew(theirs):
        return _Outcome(given, fault=RANDOM_RESULT)
    baseline = baseline_of(theirs, (), samples, seed, None)
    if not isinstance(baseline, Baseline):
        return _Outcome(given, fault=f"{source} cannot be computed: {'; '.join(baseline)}", is_refused=True)
    supplied = {str(each.name): str(other.name) for each, other in piece.sources.items()}
    prepared = Prepared(mine, theirs, baseline, {}, supplied, (), {}, ())
    feeds = [prepared.feeds(trial) for trial in baseline.trials]
    try:
        found = results_of(prepared, feeds)
    except NotImplementedError as error:
        return _Outcome(given, fault=f"the runtime lacks operators of the model: {first_line(error)}")
    except Exception as error:  # a runtime may raise anything
        finding = Finding(
            rule="runtime",
            node=name,
            expected="operators that run as those of the original do",
            found=first_line(error),
            message=f"the operators that compute {name} do not run",
        )
        return _Outcome(given, fault=finding.message, findings=(finding,))
    runs = Runs(prepared, feeds, found, {name: source}, behind(theirs, quantizes))
    [difference], float64 = judged(runs)
    is_blind = difference.passed and not has_numbers([sample[source] for sample in runs.expected])
    if is_blind and 0 not in (piece.source.shape or ()):
        return _Outcome(given, fault=f"{source} has no finite element for any of the inputs drawn")
    outputs = {str(value.name) for value in model.graph.outputs}
    return _Outcome(given, difference=difference, findings=tuple(findings_of([difference], outputs, float64)))


def _skipped(reason: str) -> Numeric:
    return Numeric(status="skipped", reason=reason)
