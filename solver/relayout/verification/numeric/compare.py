"""The comparison of a model with its original on the same random inputs: differences and sensitivity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial

import onnx_ir as ir

from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.report.schema import Finding, Numeric, OutputDifference
from relayout.verification.axis_names import fed
from relayout.verification.constants import constants_of
from relayout.verification.memory_format import MemoryFormat, memory_format_of, whole
from relayout.verification.numeric.baseline import baseline_of, drawn_anew, first_line, run
from relayout.verification.numeric.float64 import Samples, Side, in_float64
from relayout.verification.numeric.inputs import Array, with_noise, with_weights
from relayout.verification.numeric.runtimes import LARGEST_MODEL, weights_size
from relayout.verification.numeric.tolerance import difference

__all__ = ["compare"]

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")

# Inner values are compared up to this many bytes in all, so that a large model stays within memory.
_INNER_BYTES = 1 << 26


def compare(
    model: ir.Model,
    original: ir.Model,
    opaque: Set[ir.Value] = frozenset(),
    *,
    samples: int,
    seed: int,
    dims: Mapping[str, int] | None,
) -> tuple[list[Finding], Numeric]:
    """Run both models; return findings and figures. A model that cannot be run is a finding or a reason, no exception.

    `opaque` are values of the model whose memory is not in the order of their shape: they are not compared.
    """
    largest = max(weights_size(model), weights_size(original))
    if largest > LARGEST_MODEL:
        return [], _skipped(f"{largest} bytes of weights are more than the {LARGEST_MODEL} that are run")
    try:
        mine, theirs = with_weights(model), with_weights(original)
    except ValueError as error:
        return [], _skipped(f"absent weights cannot be drawn: {error}")
    drawn = drawn_anew(original)
    inner = {mine: source for mine, source in _inner(model, original, opaque).items() if source not in drawn}
    baseline = baseline_of(theirs, sorted(set(inner.values())), samples, seed, dims)
    if isinstance(baseline, str):
        message = "the original cannot be run, so no numbers are compared"
        finding = Finding(rule="runtime", severity="note", found=baseline, message=message)
        return [finding], _skipped(f"the original cannot be run: {baseline}")
    formats = {str(value.name): memory_format_of(value) for value in fed(model)}
    feeds = [{name: _in_format(array, formats.get(name)) for name, array in feed.items()} for feed in baseline.feeds]
    try:
        found = run(mine, baseline.runtime, sorted(inner), feeds)
    except NotImplementedError as error:
        # onnx.reference lacks the operators of runtimes, and onnxruntime did not run the original.
        fault, message = first_line(error), "the model has operators that the runtime lacks, so no numbers are compared"
        return [Finding(rule="runtime", severity="note", found=fault, message=message)], _skipped(fault)
    except Exception as error:  # a runtime may raise anything
        fault, expected = first_line(error), "a model that runs as its original does"
        finding = Finding(rule="runtime", expected=expected, found=fault, message="the model does not run")
        return [finding], _skipped(f"the model cannot be run: {fault}")
    outputs = {str(value.name) for value in model.graph.outputs}
    sources = {str(value.name): str(value.name) for value in model.graph.outputs if value.name not in drawn} | inner
    quantized = any(node.op_type in _QUANTIZERS for node in original.graph.all_nodes())
    differences = list(_differences(model, sources, baseline.results, found, quantized=quantized))
    float64 = None
    if not all(each.passed for each in differences):
        # A network may amplify the last bits of its inputs; the run that measures this is made only after a difference.
        noisy = run(
            theirs, baseline.runtime, sorted(set(inner.values())), [with_noise(feed) for feed in baseline.feeds]
        )
        differences = list(_differences(model, sources, baseline.results, found, noisy, quantized=quantized))
    if not all(each.passed for each in differences):
        failed = {each.name: sources[each.name] for each in differences if not each.passed}
        judge = partial(_differences, model, failed, quantized=quantized, exact=True)
        differences, float64 = in_float64(differences, failed, Side(mine, feeds), Side(theirs, baseline.feeds), judge)
    shown = tuple(each for each in differences if each.name in outputs or each.max_rel > each.tolerance)
    numeric = Numeric(
        status="compared", runtime=baseline.runtime, samples=samples, seed=seed, outputs=shown, float64=float64
    )
    findings = [*_left_out(outputs & drawn), *_findings(differences, outputs, float64)]
    return findings, numeric


def _left_out(drawn: set[str]) -> Iterator[Finding]:
    if drawn:
        message = "outputs that depend on numbers drawn without a seed are not compared"
        yield Finding(rule="random", severity="note", found=", ".join(sorted(drawn)), message=message)


def _inner(model: ir.Model, original: ir.Model, opaque: Set[ir.Value]) -> dict[str, str]:
    """Inner values that both models have, and the original's name for each: small ones, within a budget of bytes.

    Two values are the same if they have the same name, or one is annotated with the other's name, or if operators of
    the same name and type make them.

    Inner values are compared because a saturated output can hide a fault. A value that is not in the source's format is
    annotated. Integers without an annotation are excluded: they may be a shape or indices, which change with the layout
    of another value.
    """
    sources: dict[object, ir.Value] = {}
    for node in original.graph:
        for m, value in enumerate(node.outputs):
            sources[node.name, node.op_type, m] = sources[value.name] = value
    constants = constants_of(model.graph) | constants_of(original.graph)
    inner: list[tuple[bool, int, str, str]] = []
    for node in model.graph:
        for m, value in enumerate(node.outputs):
            name = value.metadata_props.get(SOURCE_KEY, value.name)
            source = sources.get(name) or sources.get((node.name, node.op_type, m))
            if source is None or value in constants or source in constants or value in opaque:
                continue
            if not _is_comparable(value, source):
                continue
            size = 4 * math.prod(extent if isinstance(extent, int) else 64 for extent in value.shape or ())
            inner.append((memory_format_of(value) is None, size, str(value.name), str(source.name)))
    spent = 0
    names = {}
    for _, size, mine, theirs in sorted(inner):
        spent += size
        if spent <= _INNER_BYTES:
            names[mine] = theirs
    return names


def _is_comparable(value: ir.Value, source: ir.Value) -> bool:
    """Whether both are tensors of the same type, inside the graph, and one has the other's extents in its format."""
    if value.is_graph_output() or value.dtype is None or value.dtype != source.dtype:
        return False
    format_ = memory_format_of(value)
    if value.shape is None or source.shape is None or (format_ is None and not value.dtype.is_floating_point()):
        return False
    format_ = format_ or whole(range(len(source.shape)))
    extents = tuple(source.shape)
    if format_.fault(extents) is not None or len(format_.dims) != len(value.shape):
        return False
    expected = format_.shape(extents)
    return all(mine == theirs or theirs is None for mine, theirs in zip(value.shape, expected, strict=True))


def _differences(
    model: ir.Model,
    sources: Mapping[str, str],
    right: Samples,
    found: Samples,
    noisy: Samples = (),
    *,
    quantized: bool,
    exact: bool = False,
) -> Iterator[OutputDifference]:
    """Compare each of `sources`, names in the model with those in the original, in the model's format."""
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    values.update({str(value.name): value for value in model.graph.outputs})
    for name, source in sources.items():
        format_ = memory_format_of(values[name])
        expected = [[_in_format(part, format_) for part in sample[source]] for sample in right]
        noise = [[_in_format(part, format_) for part in sample[source]] for sample in noisy]
        yield difference(name, expected, [sample[name] for sample in found], noise, quantized=quantized, exact=exact)


def _in_format(array: Array, format_: MemoryFormat | None) -> Array:
    """The array in an annotated format; unchanged if no annotation fits."""
    permuted = format_.of(array) if format_ is not None else None
    return array if permuted is None else permuted


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
            expected="a value that moves when the inputs are drawn again",
            found="none",
            message="no compared value depends on the inputs, so the comparison proves nothing",
        )


def _wider(difference: OutputDifference, float64: str | None) -> str:
    if difference.in_float64 is not None:
        return f"; in float64 {difference.in_float64:.3g}, of at most {difference.tolerance_in_float64:.3g}"
    return f"; in float64 {float64}"


def _skipped(reason: str) -> Numeric:
    return Numeric(status="skipped", reason=reason)
