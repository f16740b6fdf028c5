"""Digits: the order in which a value's dimensions count the elements of a row-major value.

A dimension is a list of pairs `extent:stride`, outermost first, as in the layouts of NVIDIA's CuTe, and a view changes
only these lists. The verifier's own, apart from `relayout.layout`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Digit(NamedTuple):
    """A part of the index along a dimension: how many values it has, and the step of one at the root; 0 where all are
    one element."""

    extent: int
    stride: int


Digits = tuple[Digit, ...]
"""The digits of an index, outermost first."""


def row_major(shape: Sequence[int]) -> list[Digit]:
    return [Digit(extent, prod(shape[axis + 1 :])) for axis, extent in enumerate(shape)]


def normal(digits: Iterable[Digit]) -> Digits:
    """The digits without those of one value, and those that follow one another in memory as one."""
    found: list[Digit] = []
    for digit in digits:
        if digit.extent == 1:
            continue
        if found and found[-1].stride == digit.extent * digit.stride:
            digit = Digit(found.pop().extent * digit.extent, digit.stride)
        found.append(digit)
    return tuple(found)


def extent_of(digits: Digits) -> int:
    return prod(digit.extent for digit in digits)


def grouped(digits: Sequence[Digit], shape: Sequence[int]) -> tuple[Digits, ...] | None:
    """The digits of each dimension of a Reshape to `shape`; None where one dimension has other than whole digits."""
    left = list(reversed(normal(digits)))
    if prod(digit.extent for digit in left) != prod(shape):
        return None
    groups: list[Digits] = []
    for extent in shape:
        group: list[Digit] = []
        while extent > 1:
            digit = left.pop()
            if extent % digit.extent:
                if digit.extent % extent:
                    return None
                inner = digit.extent // extent
                left.append(Digit(inner, digit.stride))
                digit = Digit(extent, digit.stride * inner)
            group.append(digit)
            extent //= digit.extent
        groups.append(normal(group))
    return tuple(groups)


def composed(dims: Sequence[Digits], source: Sequence[Digits]) -> tuple[Digits, ...] | None:
    """The digits of `dims`, which count in a row-major value whose own digits are `source`, at that one's root."""
    flat = [*chain.from_iterable(source)]
    total = prod(digit.extent for digit in flat)
    found = []
    for dim in dims:
        parts: list[Digit] = []
        for extent, stride in dim:
            pieces = grouped(flat, (total // (extent * stride), extent, stride))
            if pieces is None:
                return None
            parts += pieces[1]
        found.append(normal(parts))
    return tuple(found)


def passed_on(dim: Digits, steps: Sequence[Digit], axes: Sequence[Digits | None]) -> Digits | None:
    """The digits of an operand that `dim` counts; None where they are not known. `steps` are digits without overlap, by
    descending stride, in the value in which `dim` counts, and `axes` the operand's digits along each of them.

    An operand of extent 1 is the same for all. Along an axis of which extents change, whole dimensions pass.
    """
    found: list[Digit] = []
    for extent, stride in dim:
        parts: list[Digit] = []
        for step, digits in reversed([*zip(steps, axes, strict=True)]):
            if extent == 1 or not step.stride <= stride < step.stride * step.extent:
                continue
            inner = stride // step.stride
            outer = step.extent // inner
            taken = min(extent, outer)
            if digits is None or stride % step.stride or step.extent % inner or outer % taken or extent % taken:
                return None
            if digits and extent_of(digits) == step.extent:
                pieces = grouped(digits, (outer // taken, taken, inner))
                if pieces is None:
                    return None
                parts[:0] = pieces[1]
            elif digits:
                if taken != step.extent:
                    return None
                parts[:0] = digits
            extent //= taken
            stride *= taken
        if extent != 1:
            return None
        found += parts
    return normal(found)


def places_in(digits: Digits, wanted: Digits) -> Digits | None:
    """The places in `wanted` of these digits; None where they are not the same elements."""
    steps = sorted(wanted, key=lambda digit: -digit.stride)
    places = dict(zip(wanted, row_major([digit.extent for digit in wanted]), strict=True))
    order = passed_on(digits, steps, [(places[step],) for step in steps])
    return order if order is not None and extent_of(order) == extent_of(wanted) else None


def reordered(order: Digits | None, digits: Digits) -> Digits | None:
    """The digits along an axis in another order; None where it is not known. The channels of one of several groups are
    in order where all are."""
    if order is None:
        return None
    if extent_of(order) == extent_of(digits):
        found = composed([order], [digits])
        return None if found is None else found[0]
    return digits if order == normal([Digit(extent_of(order), 1)]) else None


def elements_at(data: Array, dims: Sequence[Digits]) -> Array:
    """The elements of row-major data along these digits, of the extents of `dims`."""
    digits = [*chain.from_iterable(dims)]
    flat = np.ascontiguousarray(data).reshape(-1)
    shape, strides = [each.extent for each in digits], [each.stride * flat.itemsize for each in digits]
    found: Array = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)
    return found.reshape([*map(extent_of, dims)])


def text_of(dims: Iterable[Digits]) -> str:
    """The digits of each dimension, `[4:20+2:1, 8:2]`."""
    return "[" + ", ".join("+".join(f"{digit.extent}:{digit.stride}" for digit in dim) or "1" for dim in dims) + "]"
