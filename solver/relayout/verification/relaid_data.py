"""Whether one array is a relayout of another: the same elements, permuted, in other shapes, and padded with zeros.

A relayout of more than whole axes is followed by its steps, as they are noted on the constant. Each step moves elements
and changes none, so no false note makes other data pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Step = Mapping[str, Any]

_MOST_PADDED, _MOST_TIMES = 1 << 20, 16
"""A note may not ask for more memory than so many elements, or so many times those of the two constants."""


def is_relayout(source: Array, result: Array, steps: Sequence[Step] = (), earlier: Sequence[Step] = ()) -> bool:
    """Whether `result` is `source` in another shape, with its axes permuted, or by their steps from one root: `earlier`
    are the source's, `steps` the result's. Each is a transpose, reshape, pad or crop (see
    `relayout.layout.relaid_constant`); what a crop cuts off must be zeros.

    >>> kernel = np.arange(24.0).reshape(2, 3, 4)
    >>> is_relayout(kernel, kernel.transpose(2, 0, 1)), is_relayout(kernel, kernel[::-1])
    (True, False)
    >>> steps = [{"op": "reshape", "shape": [2, 3, 2, 2], "from": [2, 3, 4]}, {"op": "transpose", "perm": [2, 0, 1, 3]}]
    >>> blocks = kernel.reshape(2, 3, 2, 2).transpose(2, 0, 1, 3)
    >>> is_relayout(kernel, blocks), is_relayout(kernel, blocks, steps), is_relayout(blocks, kernel, (), steps)
    (False, True, True)
    """
    if source.dtype != result.dtype:
        return False
    one, other = bits_of(source), bits_of(result)
    if one.size == other.size and np.array_equal(one.reshape(-1), other.reshape(-1)):
        return True
    most = max(_MOST_PADDED, _MOST_TIMES * max(source.size, result.size))
    laid = _moved(_moved(source, earlier, most, back=True), steps, most)
    if laid is not None and np.array_equal(bits_of(laid), other):
        return True
    one, other = one.squeeze(), other.squeeze()
    return any(np.array_equal(one.transpose(perm), other) for perm in _perms(one.shape, other.shape))


def after_steps(source: Array, steps: Sequence[Step]) -> Array | None:
    """The array after these steps; None where one does not fit, cuts off more than zeros, or fills too much up.

    >>> after_steps(np.arange(6).reshape(2, 3), [{"op": "transpose", "perm": [1, 0]}]).tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    return _moved(source, steps, max(_MOST_PADDED, _MOST_TIMES * source.size))


def _moved(array: Array | None, steps: Sequence[Step], most: int, *, back: bool = False) -> Array | None:
    """The array after all steps, or before them; None where one does not fit, cuts off more than zeros, or makes more
    than `most` elements."""
    try:
        for step in reversed(steps) if back else steps:
            if array is None:
                return None
            if step["op"] == "transpose":
                array = array.transpose(np.argsort(step["perm"]) if back else step["perm"])
            elif step["op"] == "reshape":
                array = array.reshape(step["from" if back else "shape"])
            elif step["op"] == "pad":
                widths = [-width if back else width for width in step["pads"]]
                array = _padded(array, widths[: array.ndim], widths[array.ndim :], most)
            else:
                wanted = step["from" if back else "shape"]
                behind = [extent - own for own, extent in zip(array.shape, wanted, strict=True)]
                array = _padded(array, [0] * array.ndim, behind, most)
    except (KeyError, ValueError):
        return None
    return array


def _padded(array: Array, before: Sequence[int], behind: Sequence[int], most: int) -> Array | None:
    """The array with so many zeros before and behind each axis, or, of a negative width, without so many."""
    places = zip(array.shape, before, behind, strict=True)
    cut = array[tuple([slice(max(-first, 0), max(0, extent + min(last, 0))) for extent, first, last in places])]
    added = [(max(first, 0), max(last, 0)) for first, last in zip(before, behind, strict=True)]
    size = math.prod([extent + sum(zeros) for extent, zeros in zip(cut.shape, added, strict=True)])
    if size > most or np.count_nonzero(bits_of(cut)) != np.count_nonzero(bits_of(array)):
        return None
    return np.pad(cut, added)


def is_turned(source: Array, perm: Sequence[int], result: Array) -> bool:
    """Whether `result` is `source` with its axes permuted, each of them perhaps in another order of its elements.

    The elements of an axis are told apart by the data beside them. Where two of them have the same, the answer may be
    no.

    >>> kernel = np.arange(6.0).reshape(2, 3)
    >>> is_turned(kernel, (1, 0), kernel.T[[2, 0, 1]]), is_turned(kernel, (1, 0), kernel.reshape(3, 2))
    (True, False)
    """
    turned = source.transpose(perm)
    if (turned.shape, turned.dtype) != (result.shape, result.dtype):
        return False
    one, other = bits_of(turned), bits_of(result)
    if not np.array_equal(one, other):
        for axis in range(result.ndim):
            places = np.empty(result.shape[axis], int)
            places[_by_data(other, axis)] = _by_data(one, axis)
            one = one.take(places, axis)
    return np.array_equal(one, other)


def _by_data(array: Array, axis: int) -> list[int]:
    """The elements of an axis in the order of the data beside them, whatever the order of the other axes."""
    beside = np.sort(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1), axis=1)
    keys = [each.tolist() if array.dtype == object else each.tobytes() for each in beside]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _perms(extents: Sequence[int], wanted: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The permutations of axes from one shape to another."""
    if sorted(extents) == sorted(wanted):
        for perm in permutations(range(len(extents))):
            if [extents[axis] for axis in perm] == [*wanted]:
                yield perm


def bits_of(array: Array) -> Array:
    """The bits of each element as an integer: NaN equals itself, and 0.0 is not -0.0. Text stays as it is."""
    if array.dtype.kind in "OSU":
        return array.astype(object)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
