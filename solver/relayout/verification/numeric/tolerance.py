"""The distance of two results, and the largest that is accepted.

Distances of floats are relative to the largest element of the right result; of integers and text they are the share of
elements that differ. NaN equals NaN, an infinity equals itself, and any other difference from these is infinite.
A gross difference of a slice along an axis counts by the slice's own scale: large numbers beside it would hide it.
Equal NaNs are no evidence: a result with nothing else was not compared (`has_numbers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.report.schema import OutputDifference
from relayout.verification.numeric.inputs import Array

Arrays = list[Array]
"""One output: one array for a tensor, several for a sequence, none for an empty optional."""

_TOLERANCE = {
    ir.DataType.DOUBLE: 1e-8,
    ir.DataType.FLOAT: 1e-4,
    ir.DataType.FLOAT16: 2e-2,
    ir.DataType.BFLOAT16: 1e-1,
}
# A sum in another order may round to the next quantized step, which later layers see.
_QUANTIZED = 5e-2
# Integers and booleans are right or wrong. An argmax between two maxima that are equal but for rounding may be either:
# noise in the inputs shows that, or float64 does.
_WRONG_INTEGERS = 0.0
# Rounding within the graph adds up to more than the last bits of its inputs do.
_NOISE_FACTOR = 30
# The tolerance in float64: sums in another order, no more.
_EXACT = 1e-12
# The difference of a slice, relative to its own largest element, that rounding seldom makes. Such a slice has so many
# elements other than 0, and is not so small beside the others: sums that cancel leave rounding alone.
GROSS = 5e-2
_FEW = 16
_SMALL = 1e-9
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QGemm")
_QUANTIZERS_BEGIN = "QLinear"
"""The names of all others begin so."""


def quantizes(operator: str) -> bool:
    """Whether an operator rounds to a grid, so that rounding before it may move a result by a step."""
    return operator in _QUANTIZERS or operator.startswith(_QUANTIZERS_BEGIN)


def narrow_tolerance(dtype: ir.DataType | None) -> float:
    """The tolerance of results of a float type of 16 bits, and of wider ones that are computed from them; else 0."""
    return _TOLERANCE[dtype] if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else 0.0


# Overflows and NaN are data here.
@np.errstate(all="ignore")
def difference(
    name: str,
    expected: Sequence[Arrays],
    found: Sequence[Arrays],
    noisy: Sequence[Arrays] = (),
    *,
    quantized: bool,
    narrow: float = 0.0,
    exact: bool = False,
) -> OutputDifference:
    """Compare one output over all samples.

    `noisy` are the right results with the last bits of the inputs changed: no computation can be expected to agree more
    closely than that moves a result, in the same sample. Noise that moves it as much as other inputs do explains
    nothing, nor does noise that changes a shape. With `quantized` a step of the grid is allowed; `narrow` is the
    tolerance of the narrowest floats that the output is computed from; with `exact` only noise is allowed. The figures
    are those of the sample that comes nearest to its tolerance, among those that noise does not explain if there are
    any.
    """
    quantized = quantized and not exact
    by_type = max([_tolerance(part, quantized, narrow) for arrays in expected for part in arrays], default=0.0)
    least = _EXACT if exact else by_type
    samples = list(zip(expected, found, [*noisy, *[[]] * (len(expected) - len(noisy))], strict=True))
    distances = [
        (*_worst(theirs, mine, quantized), max(least, _NOISE_FACTOR * _noise(theirs, other, quantized)))
        for theirs, mine, other in samples
    ]
    in_slice = 0.0 if quantized else max((_in_slices(*each, narrow) for each in samples), default=0.0)
    firsts = [next(first for first in expected if _fit(first, other)) for other in expected]
    moves = [
        _worst(first, other, quantized)[1] for first, other in zip(firsts, expected, strict=True) if first is not other
    ]
    sensitivity = max(moves, default=0.0)

    def is_explained(distance: tuple[float, float, float]) -> bool:
        _, relative, tolerance = distance
        return relative <= least or relative <= tolerance < (sensitivity if moves else GROSS)

    absolute, largest, tolerance = max(
        distances, key=lambda each: (not is_explained(each), _nearness(each)), default=(0.0, 0.0, least)
    )
    return OutputDifference(
        name=name,
        max_abs=absolute,
        max_rel=largest,
        tolerance=tolerance,
        sensitivity=sensitivity,
        in_slice=in_slice,
        passed=all(map(is_explained, distances)) and not in_slice,
    )


def _nearness(distance: tuple[float, float, float]) -> float:
    """How near a relative difference, the second figure, comes to its tolerance, the third; above 1: it is more."""
    _, relative, tolerance = distance
    if relative > tolerance:
        return relative / tolerance if tolerance else float("inf")
    return relative / tolerance if 0 < tolerance < float("inf") else 0.0


def _noise(theirs: Arrays, noisy: Arrays, quantized: bool) -> float:
    """The noise of a sample; 0 where it is not known, and of text, of which any noise changes all of it."""
    is_text = any(part.dtype.kind in "OSU" for part in theirs)
    return 0.0 if is_text or not noisy else _worst(theirs, noisy, quantized)[1]


def arrays(result: Any) -> Arrays:
    """Return an output's parts as arrays."""
    parts = result if isinstance(result, list) else [] if result is None else [result]
    return [np.asarray(part) for part in parts]


def is_rounding_possible(expected: Sequence[Arrays], found: Sequence[Arrays]) -> bool:
    """Whether the results have the same types, and elements in only one of two are not infinite or NaN. Their shapes
    may differ: a filter keeps other elements where rounding crosses its threshold."""
    return all(
        [part.dtype for part in theirs] == [part.dtype for part in mine]
        and (not _fit(theirs, mine) or _worst(theirs, mine, quantized=False)[1] < float("inf"))
        for theirs, mine in zip(expected, found, strict=True)
    )


def has_numbers(samples: Sequence[Arrays]) -> bool:
    """Whether any sample has an element that a comparison could find wrong: text, an integer, or a finite number."""
    return any(
        part.size > 0 and (_is_exact(part) or bool(np.isfinite(_plain(part)).any()))
        for sample in samples
        for part in sample
    )


def _in_slices(theirs: Arrays, mine: Arrays, noisy: Arrays, narrow: float) -> float:
    """The largest difference of a slice along an axis, relative to the slice's largest element; 0 where it is small,
    and no more than noise explains. `noisy` is empty where the noise is not known."""
    if not _fit(theirs, mine):
        return 0.0  # the other distance is infinite
    others = noisy if _fit(theirs, noisy) else [None] * len(theirs)
    return max((_in_slices_of(*each, narrow) for each in zip(theirs, mine, others, strict=True)), default=0.0)


def _in_slices_of(a: Array, b: Array, noisy: Array | None, narrow: float) -> float:
    if a.dtype != b.dtype or a.ndim < 2 or a.size == 0 or a.dtype.kind == "c" or _is_exact(a):
        return 0.0
    wide = a.astype(np.float64)
    apart = _gap(wide, b)
    if not apart.any():
        return 0.0
    scale, noise = np.nan_to_num(np.abs(wide), posinf=0.0), _gap(wide, noisy)
    worst, gross = 0.0, max(GROSS, 2 * _tolerance(a, False, narrow))
    for axis in range(a.ndim):
        rest = tuple(each for each in range(a.ndim) if each != axis)
        sizes, gaps = scale.max(axis=rest), apart.max(axis=rest)
        tells = (np.count_nonzero(scale, axis=rest) >= _FEW) & (sizes > _SMALL * scale.max())
        tells &= gaps > np.maximum(gross * sizes, _NOISE_FACTOR * noise.max(axis=rest))
        worst = max([worst, *(gaps[tells] / sizes[tells])])
    return float(worst)


def _gap(a: Array, b: Array | None) -> Array:
    """The absolute difference of each element; 0 without another array, and where one of the two is not finite."""
    return np.zeros_like(a) if b is None else np.nan_to_num(np.abs(a - b.astype(np.float64)), posinf=0.0)


def is_shape_shared(samples: Sequence[Arrays]) -> bool:
    """Whether two samples have the same shapes, and some elements."""
    return any(_alike(samples))


def is_still(samples: Sequence[Arrays]) -> bool:
    """Whether samples of the same shapes, of which there are two or more, are all equal."""
    pairs = [*_alike(samples)]
    return bool(pairs) and all(_worst(*pair, quantized=False)[1] == 0 for pair in pairs)


def _alike(samples: Sequence[Arrays]) -> Iterator[tuple[Arrays, Arrays]]:
    """The pairs of samples with the same shapes, and some elements."""
    filled = [sample for sample in samples if any(part.size for part in sample)]
    return (pair for pair in combinations(filled, 2) if _fit(*pair))


def _is_exact(array: Array) -> bool:
    """Whether the elements are right or wrong: text, booleans, and integers, also those of 4 and 2 bits."""
    return array.dtype.kind in "OSUb" or ir.DataType.from_numpy(array.dtype).is_integer()


def _plain(array: Array) -> Array:
    """The array in a type that NumPy has functions for."""
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def _fit(theirs: Arrays, mine: Arrays) -> bool:
    return [part.shape for part in theirs] == [part.shape for part in mine]


def _worst(theirs: Arrays, mine: Arrays, quantized: bool) -> tuple[float, float]:
    if not _fit(theirs, mine):
        return float("inf"), float("inf")
    pairs = [_distance(a, b, quantized) for a, b in zip(theirs, mine, strict=True)]
    return max((absolute for absolute, _ in pairs), default=0.0), max((relative for _, relative in pairs), default=0.0)


def _tolerance(array: Array, quantized: bool, narrow: float) -> float:
    if _is_exact(array):
        return _QUANTIZED if quantized else _WRONG_INTEGERS
    by_type = max(narrow, _TOLERANCE.get(ir.DataType.from_numpy(array.dtype), 1e-1))
    return max(by_type, _QUANTIZED) if quantized else by_type


def _distance(a: Array, b: Array, quantized: bool) -> tuple[float, float]:
    """The largest absolute difference, and the relative one as defined above."""
    if a.dtype != b.dtype:
        return float("inf"), float("inf")
    if a.size == 0:
        return 0.0, 0.0
    if a.dtype.kind in "OSU":
        return float(np.any(a != b)), float(np.mean(a != b))
    if a.dtype.kind == "c":
        return _float_distance(np.stack([a.real, a.imag]), np.stack([b.real, b.imag]))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if not _is_exact(a):
        return _float_distance(wide_a, wide_b)
    apart = np.abs(wide_a - wide_b)
    # float64 does not hold every integer of 64 bits.
    wrong = apart > 1 if quantized and a.dtype.itemsize == 1 else a != b
    return float(apart.max()), float(np.mean(wrong))


def _float_distance(a: Array, b: Array) -> tuple[float, float]:
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        same = (np.isnan(a) & np.isnan(b)) | (a == b)
        if not np.all(finite | same):
            return float("inf"), float("inf")
        if not finite.any():
            return 0.0, 0.0
        a, b = a[finite], b[finite]
    apart = float(np.abs(a - b).max())
    scale = float(np.abs(a).max())
    return apart, apart / scale if scale else (0.0 if apart == 0 else float("inf"))
