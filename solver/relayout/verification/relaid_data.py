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


def is_relayout(source: Array, result: Array, steps: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Whether `result` is `source` in another shape, with its axes permuted, or after `steps`: each a transpose,
    reshape, pad or crop (see `relayout.layout.relaid_constant`). A crop may cut off zeros alone.

    >>> kernel = np.arange(24.0).reshape(2, 3, 4)
    >>> is_relayout(kernel, kernel.transpose(2, 0, 1)), is_relayout(kernel, kernel[::-1])
    (True, False)
    >>> steps = [{"op": "reshape", "shape": [2, 3, 2, 2]}, {"op": "transpose", "perm": [2, 0, 1, 3]}]
    >>> blocks = kernel.reshape(2, 3, 2, 2).transpose(2, 0, 1, 3)
    >>> is_relayout(kernel, blocks), is_relayout(kernel, blocks, steps)
    (False, True)
    """
    if source.dtype != result.dtype:
        return False
    one, other = bits_of(source), bits_of(result)
    if one.size == other.size and np.array_equal(one.reshape(-1), other.reshape(-1)):
        return True
    laid = _after(source, steps) if steps else None
    if laid is not None and np.array_equal(bits_of(laid), other):
        return True
    one, other = one.squeeze(), other.squeeze()
    return any(np.array_equal(one.transpose(perm), other) for perm in _perms(one.shape, other.shape))


def _after(array: Array, steps: Sequence[Mapping[str, Any]]) -> Array | None:
    """The array after all steps; None where one does not fit it, or drops more than zeros."""
    for step in steps:
        kind, rank = step["op"], array.ndim
        if kind == "transpose":
            if sorted(step["perm"]) != list(range(rank)):
                return None
            array = array.transpose(step["perm"])
        elif kind == "reshape":
            if math.prod(step["shape"]) != array.size:
                return None
            array = array.reshape(step["shape"])
        elif kind == "pad":
            if len(step["pads"]) != 2 * rank:
                return None
            array = np.pad(array, list(zip(step["pads"][:rank], step["pads"][rank:], strict=True)))
        else:
            if len(step["shape"]) != rank:
                return None
            kept = array[tuple(map(slice, step["shape"]))]
            if np.count_nonzero(bits_of(kept)) != np.count_nonzero(bits_of(array)):
                return None
            array = kept
    return array


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
