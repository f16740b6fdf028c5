"""Running a model and its original on the same random inputs, and saying how far apart, and how telling, they are."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.report import Finding, Numeric, OutputDifference
from relayout.totals import constant_values
from relayout.verify.comparison import fed
from relayout.verify.contract import order_of
from relayout.verify.running import LARGEST_MODEL, RUNTIMES, Session, weights_size
from relayout.verify.sampling import Array, Plan, draw_inputs, plans, with_weights

__all__ = ["compare"]

# What two right ways to compute a value may differ by, relative to the largest element of the result.
_TOLERANCE = {
    ir.DataType.DOUBLE: 1e-8,
    ir.DataType.FLOAT: 1e-4,
    ir.DataType.FLOAT16: 2e-2,
    ir.DataType.BFLOAT16: 1e-1,
}
# A sum in another order may cross the edge between two quantized steps, and later layers see the step.
_QUANTIZED = 5e-2
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
# Integers are right or wrong, but an argmax between two equal maxima may go either way.
_WRONG_INTEGERS = 1e-3

# Inner values are compared up to this many bytes in all, so that a large model stays within memory.
_INNER_BYTES = 1 << 28


@dataclass
class _Runs:
    """All results of one model: a dict of arrays for each sample."""

    samples: list[dict[str, Any]] = field(default_factory=list)


def compare(
    model: ir.Model, original: ir.Model, *, samples: int, seed: int, dims: Mapping[str, int] | None
) -> tuple[list[Finding], Numeric]:
    """Run both models; return findings and figures. What cannot be run is a finding or a reason, never an exception."""
    largest = max(weights_size(model), weights_size(original))
    if largest > LARGEST_MODEL:
        return [], _skipped(f"{largest} bytes of weights are more than the {LARGEST_MODEL} that are run")
    try:
        mine, theirs = with_weights(model), with_weights(original)
    except ValueError as error:
        return [], _skipped(f"absent weights cannot be drawn: {error}")
    inner = _annotated(model, original)
    fault = ""
    for runtime in _available():
        for plan in plans(fed(original), dims):
            try:
                expected = _run(theirs, runtime, inner, _feeds(original, plan, samples, seed))
            except Exception as error:  # a runtime raises what it likes
                fault = fault or f"{runtime}: {_first_line(error)}"
                continue
            return _compare_with(expected, model, mine, original, runtime, plan, inner, samples, seed)
    note = Finding(
        rule="runtime", severity="note", found=fault, message="the original cannot be run, so nothing is compared"
    )
    return [note], _skipped(f"the original cannot be run: {fault}")


def _compare_with(
    expected: _Runs,
    model: ir.Model,
    runnable: ir.Model,
    original: ir.Model,
    runtime: str,
    plan: Plan,
    inner: Sequence[str],
    samples: int,
    seed: int,
) -> tuple[list[Finding], Numeric]:
    orders = {str(value.name): order_of(value) for value in fed(model)}
    feeds = [
        {name: _permuted(array, orders.get(name)) for name, array in sample.items()}
        for sample in _feeds(original, plan, samples, seed)
    ]
    try:
        found = _run(runnable, runtime, inner, feeds)
    except Exception as error:
        fault = _first_line(error)
        finding = Finding(
            rule="runtime",
            expected="a model that runs as its original does",
            found=fault,
            message="the model does not run",
        )
        return [finding], _skipped(f"the model cannot be run: {fault}")
    differences = list(_differences(expected, found, model, original, inner))
    outputs = {str(value.name) for value in model.graph.outputs}
    findings = list(_findings(differences, outputs))
    figures = tuple(difference for difference in differences if difference.name in outputs or not difference.passed)
    return findings, Numeric(status="compared", runtime=runtime, samples=samples, seed=seed, outputs=figures)


def _findings(differences: Sequence[OutputDifference], outputs: set[str]) -> Iterator[Finding]:
    for difference in differences:
        if not difference.passed:
            place = "output" if difference.name in outputs else "value"
            yield Finding(
                rule="numeric",
                node=difference.name,
                expected=f"a relative difference of at most {difference.tolerance:.3g}",
                found=f"{difference.max_rel:.3g} (absolute {difference.max_abs:.3g})",
                message=f"{place} {difference.name} is not what the original computes",
            )
    telling = [d for d in differences if d.name in outputs and d.sensitivity > 2 * d.tolerance]
    if not telling:
        yield Finding(
            rule="vacuous",
            severity="warning",
            expected="an output that moves when the inputs are drawn again",
            found="none",
            message="no output depends on the inputs, so the numeric comparison says nothing",
        )


def _available() -> list[str]:
    return [name for name in RUNTIMES if find_spec(name.split(".")[0]) is not None]


def _annotated(model: ir.Model, original: ir.Model) -> list[str]:
    """Inner values whose annotated order can be put to the test: they have a namesake in the original."""
    sources = {value.name for node in original.graph for value in node.outputs} - {
        value.name for value in original.graph.outputs
    }
    constants = constant_values(model.graph)
    names: list[str] = []
    spent = 0
    for node in model.graph:
        for value in node.outputs:
            if value.name not in sources or value in constants or order_of(value) is None or value.shape is None:
                continue
            size = 4 * int(np.prod([extent if isinstance(extent, int) else 64 for extent in value.shape]))
            if not value.is_graph_output() and spent + size <= _INNER_BYTES:
                spent += size
                names.append(str(value.name))
    return names


def _feeds(original: ir.Model, plan: Plan, samples: int, seed: int) -> list[dict[str, Array]]:
    return [draw_inputs(fed(original), plan, seed + 7919 * sample) for sample in range(samples)]


def _run(model: ir.Model, runtime: str, inner: Sequence[str], feeds: Sequence[Mapping[str, Array]]) -> _Runs:
    session = Session(model, runtime, inner)
    runs = _Runs([session.run(sample) for sample in feeds])
    del session
    gc.collect()
    return runs


def _permuted(array: Array, order: tuple[int, ...] | None) -> Array:
    if order is None or sorted(order) != list(range(array.ndim)):
        return array
    return np.ascontiguousarray(array.transpose(order))


def _differences(
    expected: _Runs, found: _Runs, model: ir.Model, original: ir.Model, inner: Sequence[str]
) -> Iterator[OutputDifference]:
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    values.update({str(value.name): value for value in model.graph.outputs})
    quantized = any(node.op_type in _QUANTIZERS for node in original.graph.all_nodes())
    for name in [*(str(value.name) for value in model.graph.outputs), *inner]:
        order = order_of(values[name])
        pairs = [
            (_arrays(theirs[name], order), _arrays(mine[name], None))
            for theirs, mine in zip(expected.samples, found.samples, strict=True)
        ]
        yield _difference(name, pairs, quantized)


def _arrays(result: Any, order: tuple[int, ...] | None) -> list[Array]:
    """An output's arrays: one for a tensor, several for a sequence, none for an empty optional."""
    parts = result if isinstance(result, list) else [] if result is None else [result]
    return [_permuted(np.asarray(part), order) for part in parts]


def _difference(name: str, pairs: Sequence[tuple[list[Array], list[Array]]], quantized: bool) -> OutputDifference:
    worst_abs = worst_rel = sensitivity = 0.0
    tolerance = 0.0
    for theirs, mine in pairs:
        if [part.shape for part in theirs] != [part.shape for part in mine]:
            worst_abs = worst_rel = float("inf")
            continue
        for a, b in zip(theirs, mine, strict=True):
            tolerance = max(tolerance, _tolerance(a, quantized))
            absolute, relative = _distance(a, b, quantized)
            worst_abs, worst_rel = max(worst_abs, absolute), max(worst_rel, relative)
    first = pairs[0][0] if pairs else []
    for theirs, _ in pairs[1:]:
        if [part.shape for part in theirs] != [part.shape for part in first]:
            sensitivity = float("inf")
            continue
        moves = [_distance(a, b, quantized)[1] for a, b in zip(first, theirs, strict=True)]
        sensitivity = max([sensitivity, *moves])
    return OutputDifference(
        name=name,
        max_abs=worst_abs,
        max_rel=worst_rel,
        tolerance=tolerance,
        sensitivity=sensitivity,
        passed=worst_rel <= tolerance,
    )


def _tolerance(array: Array, quantized: bool) -> float:
    if array.dtype.kind in "biuOSU":
        return _WRONG_INTEGERS if not quantized else _QUANTIZED
    by_type = _TOLERANCE.get(ir.DataType.from_numpy(array.dtype), 1e-1)
    return max(by_type, _QUANTIZED) if quantized else by_type


def _distance(a: Array, b: Array, quantized: bool) -> tuple[float, float]:
    """The largest absolute difference, and the same by the scale of `a`; for integers, the part that differs."""
    if a.dtype != b.dtype:
        return float("inf"), float("inf")
    if a.size == 0:
        return 0.0, 0.0
    if a.dtype.kind in "OSU":
        return float(np.any(a != b)), float(np.mean(a != b))
    wide: Callable[[Array], Array] = lambda array: array.astype(np.float64)  # noqa: E731
    apart = np.abs(wide(a) - wide(b)) if a.dtype.kind != "c" else np.abs(a - b)
    if a.dtype.kind in "biu":
        slack = 1 if quantized and a.dtype.itemsize == 1 else 0
        return float(apart.max()), float(np.mean(apart > slack))
    return _float_distance(wide(a), wide(b))


def _float_distance(a: Array, b: Array) -> tuple[float, float]:
    finite = np.isfinite(a) & np.isfinite(b)
    same = (np.isnan(a) & np.isnan(b)) | (a == b)
    if not np.all(finite | same):
        return float("inf"), float("inf")
    if not finite.any():
        return 0.0, 0.0
    apart = float(np.abs(a[finite] - b[finite]).max())
    scale = float(np.abs(a[finite]).max())
    return apart, apart / scale if scale else (0.0 if apart == 0 else float("inf"))


def _skipped(reason: str) -> Numeric:
    return Numeric(status="skipped", reason=reason)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:400] if lines else 'no message'}"
