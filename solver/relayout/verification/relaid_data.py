"""Whether one array is a relayout of another: the same elements, its axes cut, permuted and padded with zeros.

The answer is found from the data alone, without the format that a rewrite chose. An element that is off, or two rows
that are exchanged, is no relayout. Each dimension of the result is followed along its first line: its digits are found
in the lines of the source, innermost first, and all digits together must cover every axis once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from typing import Any, NamedTuple

import numpy as np

__all__ = ["is_relayout"]

Array = np.ndarray[Any, Any]

_MOST_TRIED = 200
_MOST_STEPS = 5000
"""So many combinations of digits are compared in full, and so many lines are followed: data with few different values
has more that begin alike."""

_MOST_DIGITS = 7
"""Of one dimension. A matrix of a flattened picture has three, a kernel in opaque blocks six, all in one."""


class _Digit(NamedTuple):
    """Some digits of an axis's index, `length` values of them at the stride `inner`. Axis -1 is padding alone."""

    axis: int
    inner: int
    length: int


def is_relayout(source: Array, result: Array) -> bool | None:
    """Whether `result` is `source` in another layout; None where the data does not tell.

    >>> kernel = np.arange(24.0).reshape(2, 3, 4)
    >>> is_relayout(kernel, kernel.transpose(2, 0, 1)), is_relayout(kernel, kernel[::-1])
    (True, False)
    """
    if source.dtype != result.dtype:
        return False
    one, other = _bits(source), _bits(result)
    if one.size > other.size:
        one, other = other, one  # padding that is cut off again
    if one.size == other.size and np.array_equal(one.reshape(-1), other.reshape(-1)):
        return True
    if one.dtype.kind == "O" or one.size == 0:
        return False
    if (uniform := one.reshape(-1)[0]) == one.max() == one.min():
        wanted = other.size if uniform == 0 else one.size
        return int(np.count_nonzero(other == uniform)) == wanted and (
            wanted == other.size or np.count_nonzero(other) == one.size
        )
    if np.count_nonzero(one) != np.count_nonzero(other):
        return False
    one, other = one.squeeze(), other.squeeze()
    if any(np.array_equal(one.transpose(perm), other) for perm in _perms(one.shape, other.shape)):
        return True
    # An operator with opaque blocks keeps the shape of its source, whatever the order of the elements: one dimension.
    pairs = [(one, other), (one, other.reshape(-1)), (other, one.reshape(-1))]
    # From their ends: zeros before the first row of a kernel, over blocks of an image, are then after the last.
    pairs += [(np.flip(one), np.flip(other))]
    if one.size < other.size:
        # Padding in front of an axis is padding after it, seen from the other end.
        pairs.append((np.flip(one), np.flip(other)))
    is_sure = True
    for pair in pairs:
        found = _is_found(*pair)
        if found:
            return True
        is_sure = is_sure and found is not None
    if is_sure:
        return False
    return None if np.array_equal(np.sort(one[one != 0], axis=None), np.sort(other[other != 0], axis=None)) else False


def _is_found(source: Array, result: Array) -> bool | None:
    """Whether digits of the source make up the result; None where too many may."""
    tried = 0
    try:
        for tried, layout in enumerate(islice(_layouts(source, result, _Steps()), _MOST_TRIED), 1):  # noqa: B007
            laid = _laid(source, layout)
            if laid.size == result.size and np.array_equal(laid.reshape(result.shape), result):
                return True
    except _TooManyError:
        return None
    return None if tried == _MOST_TRIED else False


def _perms(extents: Sequence[int], wanted: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The permutations of axes from one shape to another."""
    if sorted(extents) == sorted(wanted):
        for perm in permutations(range(len(extents))):
            if [extents[axis] for axis in perm] == [*wanted]:
                yield perm


class _TooManyError(Exception):
    """The search has followed too many lines."""


class _Steps:
    """The number of lines that may still be followed."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooManyError


def _bits(array: Array) -> Array:
    """The bits of each element as an integer: NaN equals itself, and 0.0 is not -0.0. Text stays as it is."""
    if array.dtype.kind in "OSU":
        return array.astype(object)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


Layout = tuple[tuple[_Digit, ...], ...]


def _layouts(source: Array, result: Array, steps: _Steps) -> Iterator[Layout]:
    """Each combination of digits, innermost first in every dimension of the result, that its first lines allow."""
    lines = [_first_line(source, axis) for axis in range(source.ndim)]
    pending: list[Layout] = [()]
    while pending:
        chosen = pending.pop()
        if len(chosen) == result.ndim:
            if _covers(chosen, source.shape):
                yield chosen
            continue
        taken = {(digit.axis, digit.inner) for group in chosen for digit in group if digit.axis >= 0}
        line = _first_line(result, len(chosen))
        found = [(*chosen, digits) for digits in islice(_splits(line, lines, steps), _MOST_TRIED)]
        pending += [
            each for each in reversed(found) if not any((digit.axis, digit.inner) in taken for digit in each[-1])
        ]


def _first_line(array: Array, axis: int) -> Array:
    return array[tuple(slice(None) if each == axis else 0 for each in range(array.ndim))]


def _splits(line: Array, sources: Sequence[Array], steps: _Steps) -> Iterator[tuple[_Digit, ...]]:
    """The digits that may make up a line, the fewest first: data with equal elements has many by chance."""
    for most in range(_MOST_DIGITS + 1):
        yield from _digits(line, sources, most, steps)


def _digits(line: Array, sources: Sequence[Array], most: int, steps: _Steps) -> Iterator[tuple[_Digit, ...]]:
    """Exactly `most` digits that make up a line, the longest first."""
    steps.take()
    if len(line) == 1 or most == 0:
        if len(line) == 1 and most == 0:
            yield ()
        return
    for axis, source in enumerate(sources):
        for inner in map(int, np.flatnonzero(source[1:] == line[1]) + 1):
            expected = np.zeros_like(line)
            seen = source[::inner][: len(line)]
            expected[: len(seen)] = seen
            wrong = np.flatnonzero(expected != line)
            run = int(wrong[0]) if len(wrong) else len(line)
            for length in range(run, 1, -1):
                # A digit may end in the padding of its axis, but does not begin there.
                if len(line) % length or (length - 1) * inner >= len(source) + length - 1:
                    continue
                for rest in _digits(line[::length], sources, most - 1, steps):
                    if not rest or (rest[0].axis, rest[0].inner) != (axis, inner * length):
                        yield (_Digit(axis, inner, length), *rest)
    if most == 1 and not line[1:].any():
        yield (_Digit(-1, 1, len(line)),)


def _covers(layout: Layout, extents: Sequence[int]) -> bool:
    """Whether the digits are all those of every axis, each once."""
    for axis, extent in enumerate(extents):
        reach = 1
        for digit in sorted(digit for group in layout for digit in group if digit.axis == axis):
            if digit.inner != reach:
                return False
            reach *= digit.length
        if reach < extent:
            return False
    return True


def _laid(source: Array, layout: Layout) -> Array:
    """The source in a layout, flat dimensions in order."""
    digits = [digit for group in layout for digit in reversed(group)]
    outermost = sorted((digit for digit in digits if digit.axis >= 0), key=lambda each: (each.axis, -each.inner))
    reaches = [math.prod(digit.length for digit in outermost if digit.axis == axis) for axis in range(source.ndim)]
    padded = np.zeros(reaches, source.dtype)
    padded[tuple(slice(extent) for extent in source.shape)] = source
    pieces = padded.reshape([digit.length for digit in outermost])
    order = [outermost.index(digit) for digit in digits if digit.axis >= 0]
    laid = pieces.transpose(order)
    for place, digit in enumerate(digits):
        if digit.axis < 0:
            widths = [(0, digit.length - 1) if each == place else (0, 0) for each in range(laid.ndim + 1)]
            laid = np.pad(np.expand_dims(laid, place), widths)
    return np.ascontiguousarray(laid)
