"""The comparison of a model with its original on the same random inputs: differences and sensitivity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain

import onnx_ir as ir

from relayout.report.schema import Finding, NotCompared, Numeric, OutputDifference
from relayout.verification.numeric.as_given import Unread, check_as_given
from relayout.verification.numeric.baseline import Feeds, behind, drawn_anew, first_line, run, variant
from relayout.verification.numeric.float64 import Samples, Side, in_float64
from relayout.verification.numeric.inputs import with_noise, with_weights
from relayout.verification.numeric.preparation import Prepared, in_format, prepare, values_of
from relayout.verification.numeric.runtimes import LARGEST_COPY, LARGEST_MODEL, weights_size
from relayout.verification.numeric.tolerance import Arrays, difference, has_numbers

__all__ = ["compare"]

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QGemm")
_QUANTIZED = "QLinear"
"""The names of all others begin so."""
_RANDOM = "it depends on numbers drawn without a seed"


def compare(
    model: ir.Model,
    original: ir.Model,
    opaque: Set[ir.Value] = frozenset(),
    *,
    samples: int,
    seed: int,
    dims: Mapping[str, int] | None,
    given: tuple[object, object] = (None, None),
) -> tuple[list[Finding], Numeric]:
    """Run both models; return findings and figures. A model that cannot be run is a finding or a reason, no exception.

    `opaque` are values of the model whose memory is not in the order of their shape: they are not compared. `given` are
    the sources that the model and its original were read from: where they are files, bytes or protobufs, they run too.
    """
    largest = max(weights_size(model), weights_size(original))
    if largest > LARGEST_MODEL:
        return [], _skipped(f"{largest} bytes of weights are more than the {LARGEST_MODEL} that are run")
    try:
        mine, theirs = with_weights(model), with_weights(original)
    except ValueError as error:
        return [], _skipped(f"absent weights cannot be drawn: {error}")
    drawn = drawn_anew(original)
    prepared = prepare(mine, theirs, {value.name for value in opaque}, drawn, samples, seed, dims)
    if isinstance(prepared, str):
        return [], _skipped(f"the original cannot be run: {prepared}")
    feeds = [prepared.feeds(trial) for trial in prepared.baseline.trials]
    try:
        found = _results(prepared, feeds)
    except NotImplementedError as error:
        # onnx.reference lacks the operators of runtimes, and onnxruntime did not run the original.
        return [], _skipped(f"the runtime lacks operators of the model: {first_line(error)}")
    except Exception as error:  # a runtime may raise anything
        fault, expected = first_line(error), "a model that runs as its original does"
        finding = Finding(rule="runtime", expected=expected, found=fault, message="the model does not run")
        return [finding], _skipped(f"the model cannot be run: {fault}")
    outputs = {str(value.name) for value in prepared.model.graph.outputs}
    sources = {**{name: name for name in sorted(outputs - drawn)}, **prepared.inner}
    runs = _Runs(prepared, feeds, found, sources, behind(original, _quantizes))
    differences, float64 = _judged(runs)
    # All is known of a result of no elements.
    empty = {str(value.name) for value in original.graph.outputs if 0 in (value.shape or ())}
    expected_of = {each.name: [sample[sources[each.name]] for sample in runs.expected] for each in differences}
    blind = {name for name, results in expected_of.items() if not has_numbers(results)} - empty
    left_out = {
        **dict.fromkeys(sorted({str(value.name) for value in original.graph.outputs} & drawn), _RANDOM),
        **prepared.left_out,
        **dict.fromkeys(sorted(outputs & blind), "it has no finite element for any of the inputs drawn"),
    }
    telling = [each for each in differences if each.name not in blind or not each.passed]
    findings = [*prepared.notes, *_left_out(left_out), *_findings(telling, outputs, float64)]
    unread, not_run = _as_given(runs, given, left_out.keys())
    numeric = Numeric(
        status="compared" if telling else "skipped",
        reason=None if telling else "no output has a value that could be compared",
        runtime=prepared.baseline.runtime,
        samples=samples,
        seed=seed,
        outputs=tuple(each for each in telling if each.name in outputs or each.max_rel > each.tolerance),
        not_compared=tuple(NotCompared(name=name, reason=reason) for name, reason in left_out.items()),
        untried=(*prepared.baseline.untried, *not_run),
        float64=float64,
    )
    return [*findings, *unread], numeric


@dataclass(frozen=True)
class _Runs:
    """Both models and their runs: `feeds` are the model's inputs in each trial, `found` its results for every sample.

    `sources` are the values of the model that are compared, each with the original's name; `quantized` are values of
    the original behind a quantization.
    """

    prepared: Prepared
    feeds: Sequence[Feeds]
    found: Samples
    sources: Mapping[str, str]
    quantized: Set[str]

    @property
    def expected(self) -> Samples:
        """The original's results for every sample."""
        return [sample for trial in self.prepared.baseline.trials for sample in trial.results]


def _results(prepared: Prepared, feeds: Sequence[Feeds]) -> Samples:
    """The model's results for every sample of all trials. Raises whatever the runtime does."""
    trials, runtime = prepared.baseline.trials, prepared.baseline.runtime
    inner = sorted(prepared.inner)
    runs = [run(variant(prepared.model, trial), runtime, inner, own) for trial, own in zip(trials, feeds, strict=True)]
    return [*chain.from_iterable(runs)]


def _judged(runs: _Runs) -> tuple[list[OutputDifference], str | None]:
    """The difference of each value, and the verdict of float64 where that was needed.

    A network may amplify the last bits of its inputs. The run that measures this is made only after a difference, and
    those in float64 only after one that is larger.
    """
    prepared, baseline = runs.prepared, runs.prepared.baseline
    judge = partial(_differences, prepared.model, prepared.original)
    differences = list(judge(runs.sources, runs.expected, runs.found, quantized=runs.quantized))
    if all(each.passed for each in differences):
        return differences, None
    noisy: list[dict[str, Arrays]] = []
    for trial in baseline.trials:
        disturbed = [with_noise(feed) for feed in trial.feeds]
        noisy += run(variant(prepared.original, trial), baseline.runtime, prepared.asked, disturbed)
    differences = list(judge(runs.sources, runs.expected, runs.found, noisy, quantized=runs.quantized))
    failed = {each.name: runs.sources[each.name] for each in differences if not each.passed}
    if not failed:
        return differences, None
    pairs = [
        (Side(variant(prepared.model, trial), feed), Side(variant(prepared.original, trial), trial.feeds))
        for trial, feed in zip(baseline.trials, runs.feeds, strict=True)
    ]
    return in_float64(differences, failed, pairs, partial(judge, failed, quantized=frozenset(), exact=True))


def _as_given(runs: _Runs, given: tuple[object, object], left_out: Set[str]) -> tuple[list[Finding], list[str]]:
    """The same of both models as they were given, in the first trial; of models that were cut nothing is said."""
    prepared, baseline = runs.prepared, runs.prepared.baseline
    if prepared.is_partial:
        return [], []
    if max(map(weights_size, (prepared.model, prepared.original))) > LARGEST_COPY:
        return [], ["to run the models as they were given: their weights are too large to be copied"]
    first, runtime = baseline.trials[0], baseline.runtime

    def unread(title: str, source: object, read: ir.Model, feeds: Feeds, results: Samples) -> Unread:
        return Unread(title, source, feeds, results, partial(run, variant(read, first), runtime, (), feeds))

    original = unread("the original", given[1], prepared.original, first.feeds, first.results)
    model = unread("the model", given[0], prepared.model, runs.feeds[0], runs.found[: len(first.feeds)])
    return check_as_given(original, model, runtime, left_out, runs.quantized)


def _quantizes(node: ir.Node) -> bool:
    return node.op_type in _QUANTIZERS or node.op_type.startswith(_QUANTIZED)


def _left_out(reasons: Mapping[str, str]) -> Iterator[Finding]:
    drawn = sorted(name for name, reason in reasons.items() if reason == _RANDOM)
    if drawn:
        message = "outputs that depend on numbers drawn without a seed are not compared"
        yield Finding(rule="random", severity="note", found=", ".join(drawn), message=message)
    for name, reason in reasons.items():
        if reason != _RANDOM:
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
    quantized: Set[str],
    exact: bool = False,
) -> Iterator[OutputDifference]:
    """Compare each of `sources`, names in the model with those in the original, in the model's format."""
    values, known = values_of(model), values_of(original)
    for name, source in sources.items():
        expected = [[in_format(part, values[name], known[source]) for part in sample[source]] for sample in right]
        noise = [[in_format(part, values[name], known[source]) for part in sample[source]] for sample in noisy]
        mine = [sample[name] for sample in found]
        yield difference(name, expected, mine, noise, quantized=source in quantized, exact=exact)


def _findings(differences: Sequence[OutputDifference], outputs: set[str], float64: str | None) -> Iterator[Finding]:
    for each in differences:
        if each.max_rel > each.tolerance:
            place = f"{'output' if each.name in outputs else 'value'} {each.name}"
            verdict = "differs from the original's by rounding alone" if each.passed else "differs from the original's"
            yield Finding(
                rule="rounding" if each.passed else "numeric",
                severity="note" if each.passed else "error",
                node=each.name,
                expected=f"a relative difference of at most {each.tolerance:.3g}",
                found=f"{each.max_rel:.3g} (absolute {each.max_abs:.3g}){_wider(each, float64)}",
                message=f"{place} {verdict}",
            )
    if not any(each.sensitivity > 2 * each.tolerance for each in differences):
        yield Finding(
            rule="vacuous",
            severity="warning",
            expected="a value that changes from one sample of the inputs to the next, in two samples or more",
            found="none",
            message="no compared value was seen to depend on the inputs, so the comparison proves nothing",
        )


def _wider(difference: OutputDifference, float64: str | None) -> str:
    if difference.in_float64 is not None:
        return f"; in float64 {difference.in_float64:.3g}, of at most {difference.tolerance_in_float64:.3g}"
    return f"; in float64 {float64}"


def _skipped(reason: str) -> Numeric:
    return Numeric(status="skipped", reason=reason)
