"""The judgement of two models that were run: the differences of their values, and the findings on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import isinf
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from relayout.report.schema import Finding, OutputDifference, Severity
from relayout.verification.constants import constants_of
from relayout.verification.numeric.baseline import Feeds, Trial, behind, run, variant
from relayout.verification.numeric.bodies import BodyOf
from relayout.verification.numeric.filters import keeping
from relayout.verification.numeric.float64.verdict import Samples, Side, Verdict, in_float64
from relayout.verification.numeric.inputs import Array, with_noise, with_noisy_constants
from relayout.verification.numeric.preparation import RANDOM_RESULT, Prepared, in_format, values_of
from relayout.verification.numeric.runtimes import LARGEST_COPY, weights_size
from relayout.verification.numeric.tolerance import (
    GROSS,
    Arrays,
    difference,
    is_rounding_possible,
    narrow_tolerance,
    quantizes,
)

UNDECIDED = "it differs by no more than noise in the last bits of the inputs moves it"
"""Why a value is `undecided`."""
_SHOWN = 5


@dataclass(frozen=True)
class Runs:
    """Both models and their runs: `feeds` are the model's inputs in each trial, `found` its results for every sample.

    `sources` are the values of the model that are compared, each with the original's name; `quantized` are values of
    the original behind a quantization; `narrow` has the tolerance of each one that is computed from floats of 16 bits;
    `body_of` has the bodies of operators of a backend's own.
    """

    prepared: Prepared
    feeds: Sequence[Feeds]
    found: Samples
    sources: Mapping[str, str]
    quantized: Set[str]
    narrow: Mapping[str, float]
    body_of: BodyOf

    @property
    def expected(self) -> Samples:
        """The original's results for every sample."""
        return [sample for trial in self.prepared.baseline.trials for sample in trial.results]


def runs_of(prepared: Prepared, sources: Mapping[str, str], original: ir.Model, body_of: BodyOf) -> Runs:
    """The runs of the model in all trials, beside those of the `original`. Raises whatever the runtime does."""
    trials, runtime = prepared.baseline.trials, prepared.baseline.runtime
    inner = sorted(prepared.inner)
    feeds = [prepared.feeds(trial) for trial in trials]
    runs = [run(variant(prepared.model, trial), runtime, inner, own) for trial, own in zip(trials, feeds, strict=True)]
    quantized = behind(original, lambda node: quantizes(node.op_type))
    return Runs(prepared, feeds, [*chain.from_iterable(runs)], sources, quantized, _behind_narrow(original), body_of)


def _behind_narrow(model: ir.Model) -> dict[str, float]:
    """The tolerance of each value that is computed from floats of 16 bits: a sum in another order may round to the next
    of them, also where a Cast makes the result float32. Constants are not computed."""
    constants = constants_of(model.graph)

    def tolerance(node: ir.Node) -> float:
        return max((narrow_tolerance(value.dtype) for value in node.outputs if value not in constants), default=0.0)

    found: dict[str, float] = {}
    for least in sorted({*map(tolerance, model.graph.all_nodes())} - {0.0}):
        makers = {node for node in model.graph.all_nodes() if tolerance(node) == least}
        found |= dict.fromkeys(behind(model, makers.__contains__), least)
    return found


def judged(runs: Runs) -> tuple[list[OutputDifference], Verdict | None]:
    """The difference of each value, and the verdict of float64 where that was needed.

    A network may amplify the last bits of its inputs. The run that measures this is made only after a difference, and
    those in float64 only after one that is larger. Where float64 tells nothing, a step of a quantizer is allowed, and
    rounding to floats of 16 bits where both models round alike.
    """
    prepared = runs.prepared
    judge = partial(_differences, prepared.model, prepared.original)
    differences = list(judge(runs.sources, runs.expected, runs.found))
    if all(each.passed for each in differences):
        return differences, None
    for noisy in _noisy(prepared):
        differences = list(judge(runs.sources, runs.expected, runs.found, noisy))
        failed = {each.name: runs.sources[each.name] for each in differences if not each.passed}
        if not failed or any(_is_moved(source, runs.expected, noisy) for source in failed.values()):
            break
    if not failed:
        return differences, None
    pairs = [
        (Side(variant(prepared.model, trial), mine), Side(variant(prepared.original, trial), theirs))
        for trial, mine, theirs in _doubtful(runs, failed, judge)
    ]
    if _is_rounding_possible(runs, differences):
        judge_exactly = partial(judge, failed, exact=True)
        differences, verdict = in_float64(differences, failed, pairs, judge_exactly, runs.body_of)
    else:
        verdict = Verdict("not run: a result of another type, or infinite in only one model, is not rounding")
    untold = {each.name for each in differences if not each.passed and each.in_float64 is None}
    narrow = {} if verdict.has_other_casts else runs.narrow
    rounded = {name: failed[name] for name in untold if failed[name] in runs.quantized | narrow.keys()}
    judge_by_step = partial(judge, rounded, quantized=runs.quantized, narrow=narrow)
    by_step = {each.name: each for each in judge_by_step(runs.expected, runs.found, noisy)}
    differences = [by_step.get(each.name, each) for each in differences]
    unbounded = undecided(differences)
    return [
        each if _is_decided(each) or each.name in unbounded else each.model_copy(update={"passed": True})
        for each in differences
    ], verdict


def _is_rounding_possible(runs: Runs, differences: Sequence[OutputDifference]) -> bool:
    """Whether all infinite differences may be rounding: those of shapes alone, which float64 compares too."""
    mine, theirs = values_of(runs.prepared.model), values_of(runs.prepared.original)
    infinite = {each.name: runs.sources[each.name] for each in differences if not each.passed and isinf(each.max_rel)}
    return all(
        is_rounding_possible(
            _in_format_of(mine[name], theirs[source], runs.expected), [sample[name] for sample in runs.found]
        )
        for name, source in infinite.items()
    )


def _doubtful(
    runs: Runs, failed: Mapping[str, str], judge: Callable[..., Iterator[OutputDifference]]
) -> list[tuple[Trial, Feeds, Feeds]]:
    """The inputs of the model and of the original, in each trial, on which a value that `failed` differs by more than
    its type allows, or by a step of a quantizer; all if there is none."""
    trials, start = list(zip(runs.prepared.baseline.trials, runs.feeds, strict=True)), 0
    found = []
    for trial, feeds in trials:
        samples = list(zip(runs.expected[start:], runs.found[start:], feeds, trial.feeds, strict=False))
        start += len(feeds)
        pairs = [
            (mine, theirs)
            for right, other, mine, theirs in samples
            if not all(each.passed for each in judge(failed, [right], [other]))
        ]
        if pairs:
            found.append((trial, [mine for mine, _ in pairs], [theirs for _, theirs in pairs]))
    return found or [(trial, feeds, trial.feeds) for trial, feeds in trials]


def _noisy(prepared: Prepared) -> Iterator[list[dict[str, Arrays]]]:
    """The original's results in all trials with noise in its inputs; then those with noise in its constants, where the
    noise in its inputs is lost, such as in indices, and the constants are not too large to be copied."""
    yield _disturbed(prepared, prepared.original, with_noise)
    if weights_size(prepared.original) <= LARGEST_COPY:
        yield _disturbed(prepared, with_noisy_constants(prepared.original), dict)


def _disturbed(
    prepared: Prepared, original: ir.Model, disturb: Callable[[Mapping[str, Array]], dict[str, Array]]
) -> list[dict[str, Arrays]]:
    found = []
    for trial in prepared.baseline.trials:
        feeds = [disturb(feed) for feed in trial.feeds]
        found += run(variant(original, trial), prepared.baseline.runtime, prepared.asked, feeds)
    return found


def _is_moved(name: str, right: Samples, noisy: Samples) -> bool:
    pairs = [
        pair for one, other in zip(right, noisy, strict=True) for pair in zip(one[name], other[name], strict=False)
    ]
    return any(not np.array_equal(one, other) for one, other in pairs)


def _is_decided(difference: OutputDifference) -> bool:
    """Whether it is known if a difference is a fault. That of a slice alone may be rounding where sums cancel, and
    noise may move a result as much as other inputs do: only float64 tells."""
    return difference.passed or difference.max_rel > difference.tolerance or difference.in_float64 is not None


def undecided(differences: Iterable[OutputDifference]) -> set[str]:
    """The values of which neither a run nor float64 tells anything: noise changes their shape, or moves them by as much
    as they differ, where no two samples of one shape show how much other inputs do."""
    return {
        each.name
        for each in differences
        if not (each.passed or _is_decided(each))
        and (isinf(each.tolerance) or (each.tolerance >= GROSS and not each.sensitivity))
    }


def undecided_behind_filters(runs: Runs, differences: Sequence[OutputDifference]) -> set[str]:
    """The values that differ only where filters are made to keep elements, and of which float64 tells nothing: the
    elements are sorted, and rounding may decide the order of those that are nearly equal."""
    failed = {each.name: runs.sources[each.name] for each in differences if not each.passed and each.in_float64 is None}
    is_kept = [trial.change is keeping for trial in runs.prepared.baseline.trials for _ in trial.results]
    if not failed or not any(is_kept):
        return set()
    right, found = (
        [each for each, kept in zip(own, is_kept, strict=True) if not kept] for own in (runs.expected, runs.found)
    )
    models = runs.prepared.model, runs.prepared.original
    by_step = _differences(*models, failed, right, found, quantized=runs.quantized, narrow=runs.narrow)
    return {each.name for each in by_step if each.passed}


def left_out_findings(reasons: Mapping[str, str]) -> Iterator[Finding]:
    drawn = sorted(name for name, reason in reasons.items() if reason == RANDOM_RESULT)
    if drawn:
        message = "outputs that depend on numbers drawn without a seed are not compared"
        yield Finding(rule="random", severity="note", found=", ".join(drawn), message=message)
    for name, reason in reasons.items():
        if reason != RANDOM_RESULT:
            message = f"output {name} is not compared; with --static (options.static) the other checks are enough"
            yield Finding(rule="not-compared", severity="warning", node=name, found=reason, message=message)


def _differences(
    model: ir.Model,
    original: ir.Model,
    sources: Mapping[str, str],
    right: Samples,
    found: Samples,
    noisy: Samples = (),
    *,
    quantized: Set[str] = frozenset(),
    narrow: Mapping[str, float] = MappingProxyType({}),
    exact: bool = False,
) -> Iterator[OutputDifference]:
    """Compare each of `sources`, names in the model with those in the original, in the model's format."""
    values, known = values_of(model), values_of(original)
    for name, source in sources.items():
        expected, noise = (_in_format_of(values[name], known[source], samples) for samples in (right, noisy))
        mine = [sample[name] for sample in found]
        least = narrow.get(source, 0.0)
        yield difference(name, expected, mine, noise, quantized=source in quantized, narrow=least, exact=exact)


def _in_format_of(value: ir.Value, source: ir.Value, samples: Samples) -> list[Arrays]:
    """The results of `source`, a value of the original, in the format of `value`."""
    return [[in_format(part, value, source) for part in sample[str(source.name)]] for sample in samples]


def findings_of(
    differences: Sequence[OutputDifference], outputs: set[str], float64: Verdict | None
) -> Iterator[Finding]:
    for each in differences:
        kind = "output" if each.name in outputs else "value"
        if each.max_rel > each.tolerance or not (each.passed or each.in_slice):
            verdict = "differs from the original's by rounding alone" if each.passed else "differs from the original's"
            yield Finding(
                rule="rounding" if each.passed else "numeric",
                severity="note" if each.passed else "error",
                node=each.name,
                expected=f"a relative difference of at most {each.tolerance:.3g}",
                found=f"{each.max_rel:.3g} (absolute {each.max_abs:.3g}){_wider(each, float64)}",
                message=f"this {kind} {verdict}",
            )
        elif each.in_slice:
            verdict = (
                "" if not each.passed else " by rounding alone" if each.in_float64 is not None else ", or is rounded"
            )
            severity: Severity = "error" if not each.passed else "note" if each.in_float64 is not None else "warning"
            yield Finding(
                rule="rounding" if each.passed else "numeric",
                severity=severity,
                node=each.name,
                expected="a small difference in each slice along an axis, relative to that slice",
                found=f"{each.in_slice:.3g}{_wider(each, float64)}",
                message=f"a part of this {kind} differs from the original's{verdict}",
            )


def vacuous(differences: Sequence[OutputDifference], moved: Set[str], *, has_pairs: bool = True) -> Iterator[Finding]:
    """A finding where no value depends on what is drawn, or where some of those do not that inputs may have `moved`.

    Without `has_pairs`, no two samples give a value the same shape, and whether it depends on them is not known.
    """
    expected = "a value that changes from one sample of the inputs to the next, in two samples or more"
    still = [each.name for each in differences if each.sensitivity <= 2 * each.tolerance]
    if differences and not has_pairs:
        expected, found = "two samples or more with values of the same shapes", "none"
        message = "it was not seen whether the compared values depend on the inputs"
    elif len(still) == len(differences):
        found, message = "none", "no compared value was seen to depend on the inputs, so the comparison proves nothing"
    elif still := [name for name in still if name in moved]:
        found = f"{', '.join(still[:_SHOWN])}{f' and {len(still) - _SHOWN} more' if len(still) > _SHOWN else ''}"
        message = "the inputs drawn change these values by no more than is tolerated: a fault in them may not show"
    else:
        return
    yield Finding(rule="vacuous", severity="warning", expected=expected, found=found, message=message)


def _wider(difference: OutputDifference, float64: Verdict | None) -> str:
    if difference.in_float64 is not None:
        return f"; in float64 {difference.in_float64:.3g}, of at most {difference.tolerance_in_float64:.3g}"
    return wider(difference.name, float64)


def wider(name: str, float64: Verdict | None) -> str:
    """The verdict of float64 about a value, as the rest of a sentence."""
    return f"; in float64 {float64.about(name)}" if float64 is not None else ""
