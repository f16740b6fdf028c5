"""Whether one array is a relayout of another: the same elements, its axes cut, permuted and padded with zeros.

The answer is found from the data alone, without the format that a rewrite chose. An element that is off, or two rows
that are exchanged, is no relayout. One element, the anchor, is found in both. Each dimension of the result is followed
along its line through the anchor: its digits are found in the lines of the source, innermost first, and all digits
together must cover every axis once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice, pairwise, permutations, product
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

_MOST_TRIED = 200
_MOST_STEPS = 5000
"""So many combinations of digits are compared in full, and so many lines are followed: data with few different values
has more that begin alike."""

_MOST_STEPS_INSIDE = 10 * _MOST_STEPS
"""The same for elements inside, which are tried only where the corners show no layout."""

_MOST_PLACES = 64
"""So many elements of the result that equal one of the source are tried as that one."""

_INSIDE = 6
"""The elements of an axis that are tried, beside its corners. Only short axes, of kernels, are padded at both ends."""

_MOST_DIGITS = 7
"""Of one dimension. A matrix of a flattened picture has three, a kernel in opaque blocks six, all in one."""


class _Digit(NamedTuple):
    """Some digits of an axis's index, `length` values of them at the stride `inner`; `at` is the anchor's. Axis -1 is
    padding alone."""

    axis: int
    inner: int
    length: int
    at: int


class _Anchor(NamedTuple):
    """The indices of one element in the source and in the result."""

    source: tuple[int, ...]
    result: tuple[int, ...]


class _Line(NamedTuple):
    """The elements along a dimension of the result, and the anchor's place among them."""

    data: Array
    at: int


class _Dimension:
    """A dimension of the result: its line through the anchor, and what may be the digits of its index.

    Without some digits, the innermost ones, a line has every n-th element, and always the anchor. So `n` alone says
    which, and the digits that it may begin with are found once, though many searches come to it.
    """

    def __init__(self, line: _Line, sources: Sequence[Array], anchor: _Anchor, *, lonely: bool) -> None:
        self._line, self._sources, self._anchor, self._lonely = line, sources, anchor, lonely
        self._first: dict[int, list[_Digit]] = {}
        self._padding: dict[int, _Digit | None] = {}

    def size(self, n: int) -> int:
        """The number of elements of the line with every n-th element."""
        return len(self._line.data) // n

    def first(self, n: int) -> list[_Digit]:
        """The digits that the line with every n-th element may begin with, those of an axis and stride together, the
        longest first."""
        if n not in self._first:
            self._first[n] = list(self._found(self._every(n)))
        return self._first[n]

    def padding(self, n: int) -> _Digit | None:
        """One digit of padding alone, where the line with every n-th element may be one."""
        if n not in self._padding:
            data, at = self._every(n)
            is_alone = np.count_nonzero(data) == np.count_nonzero(data[at])
            self._padding[n] = _Digit(-1, 1, len(data), at) if is_alone else None
        return self._padding[n]

    def _every(self, n: int) -> _Line:
        return _Line(self._line.data[self._line.at % n :: n], self._line.at // n)

    def _found(self, line: _Line) -> Iterator[_Digit]:
        for axis, (source, here) in enumerate(zip(self._sources, self._anchor.source, strict=True)):
            for inner in (*_strides(line, source, here), *[1, len(source)] * self._lonely):
                before, behind = _agreeing(line, source, here, inner)
                for length in _divisors(len(line.data)):
                    # A digit may end in the padding of its axis, but does not begin there.
                    if len(source) + length - 1 <= (length - 1) * inner != (length - 1) * len(source):
                        continue
                    at = line.at % length
                    if at <= before and length - 1 - at <= behind:
                        yield _Digit(axis, inner, length, at)


def is_relayout(source: Array, result: Array) -> bool | None:
    """Whether `result` is `source` in another layout; None where the data does not tell.

    >>> kernel = np.arange(24.0).reshape(2, 3, 4)
    >>> is_relayout(kernel, kernel.transpose(2, 0, 1)), is_relayout(kernel, kernel[::-1])
    (True, False)
    """
    if source.dtype != result.dtype:
        return False
    one, other = bits_of(source), bits_of(result)
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
    # Padding before every axis, as a kernel over blocks of an image may have, is none at the last corner.
    corners = [*((*pair, _corner(*pair, last=False)) for pair in pairs), (one, other, _corner(one, other, last=True))]
    found = []
    for each in corners:
        found.append(_is_found(*each, _Steps()))
        if found[-1]:
            return True
    # Padding before some axes and behind others is none at another corner.
    steps = _Steps()
    indices = product(*((0, extent - 1) for extent in one.shape))
    if any(_is_found(one, other, anchor, steps) for anchor in _anchors(one, other, indices)):
        return True
    if not np.array_equal(np.sort(one[one != 0], axis=None), np.sort(other[other != 0], axis=None)):
        return False
    if None in found:
        return None
    # Padding at both ends of an axis may leave each corner alone in its block: an element inside has neighbours there,
    # though perhaps none in the block before or after.
    searches = [_Steps(_MOST_STEPS_INSIDE), *[_Steps(_MOST_STEPS_INSIDE, lonely=True)] * (one.size < other.size)]
    anchors = list(_anchors(one, other, _inside(one.shape)))
    return any(_is_found(one, other, anchor, steps) for steps in searches for anchor in anchors)


def _is_found(source: Array, result: Array, anchor: _Anchor, steps: _Steps) -> bool | None:
    """Whether digits of the source make up the result; None where too many may."""
    tried = 0
    try:
        for tried, layout in enumerate(islice(_layouts(source, result, anchor, steps), _MOST_TRIED), 1):  # noqa: B007
            laid = _laid(source, anchor, layout)
            if laid.size == result.size and np.array_equal(laid.reshape(result.shape), result):
                return True
    except _TooManyError:
        return None
    return None if tried == _MOST_TRIED else False


def _corner(source: Array, result: Array, *, last: bool) -> _Anchor:
    """The first corners of both, or the last."""
    return _Anchor(*(tuple((extent - 1) * last for extent in each.shape) for each in (source, result)))


def _anchors(source: Array, result: Array, indices: Iterable[tuple[int, ...]]) -> Iterator[_Anchor]:
    """The elements of the source at these indices, each with the places of the result that it may be at."""
    for index in indices:
        if source[index] != 0:
            for place in islice(np.argwhere(result == source[index]), _MOST_PLACES):
                yield _Anchor(index, tuple(map(int, place)))


def _inside(extents: Sequence[int]) -> list[tuple[int, ...]]:
    """The indices of some elements, those on the diagonal first, and of them those inside."""
    near = product(*(range(min(extent, _INSIDE)) for extent in extents))
    return sorted(islice(near, _MOST_STEPS), key=lambda index: (max(index) - min(index), -min(index)))


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


class _TooManyError(Exception):
    """The search has followed too many lines."""


class _Steps:
    """The number of lines that may still be followed. `lonely`: an axis's innermost and outermost digits may have
    padding alone beside the anchor, and then 1 and the axis's extent for strides."""

    def __init__(self, most: int = _MOST_STEPS, *, lonely: bool = False) -> None:
        self._left, self.lonely = most, lonely

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooManyError


def bits_of(array: Array) -> Array:
    """The bits of each element as an integer: NaN equals itself, and 0.0 is not -0.0. Text stays as it is."""
    if array.dtype.kind in "OSU":
        return array.astype(object)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


Layout = tuple[tuple[_Digit, ...], ...]


def _layouts(source: Array, result: Array, anchor: _Anchor, steps: _Steps) -> Iterator[Layout]:
    """Each combination of digits, innermost first in every dimension of the result, that its lines through the anchor
    allow."""
    sources = [_line(source, anchor.source, axis) for axis in range(source.ndim)]
    dimensions = [
        _Dimension(_Line(_line(result, anchor.result, axis), at), sources, anchor, lonely=steps.lonely)
        for axis, at in enumerate(anchor.result)
    ]
    pending: list[Layout] = [()]
    while pending:
        chosen = pending.pop()
        if len(chosen) == result.ndim:
            if _offsets(chosen, anchor, source.shape) is not None:
                yield chosen
            continue
        taken = {(digit.axis, digit.inner) for group in chosen for digit in group if digit.axis >= 0}
        found = [(*chosen, digits) for digits in islice(_splits(dimensions[len(chosen)], steps), _MOST_TRIED)]
        pending += [
            each for each in reversed(found) if not any((digit.axis, digit.inner) in taken for digit in each[-1])
        ]


def _line(array: Array, anchor: Sequence[int], axis: int) -> Array:
    """The elements of an array along an axis, through an anchor."""
    return array[tuple(slice(None) if each == axis else place for each, place in enumerate(anchor))]


def _splits(dimension: _Dimension, steps: _Steps) -> Iterator[tuple[_Digit, ...]]:
    """The digits that may make up a dimension, the fewest first: data with equal elements has many by chance."""
    for most in range(_MOST_DIGITS + 1):
        yield from _digits(dimension, 1, most, steps)


def _digits(
    dimension: _Dimension, n: int, most: int, steps: _Steps, joined: tuple[int, int] | None = None
) -> Iterator[tuple[_Digit, ...]]:
    """Exactly `most` digits that make up the line with every n-th element, the longest first.

    A first digit of the axis and stride `joined` would be one digit with that before it.
    """
    steps.take()
    size = dimension.size(n)
    if size == 1 or most == 0:
        if size == 1 and most == 0:
            yield ()
        return
    for digit in dimension.first(n):
        if (digit.axis, digit.inner) != joined:
            joins = digit.axis, digit.inner * digit.length
            for rest in _digits(dimension, n * digit.length, most - 1, steps, joins):
                yield (digit, *rest)
    if most == 1 and (padding := dimension.padding(n)) is not None:
        yield (padding,)


@cache
def _divisors(size: int) -> list[int]:
    """The divisors of a number above 1, the largest first."""
    small = [each for each in range(1, math.isqrt(size) + 1) if size % each == 0]
    return sorted({*small, *(size // each for each in small)} - {1}, reverse=True)


def _strides(line: _Line, source: Array, here: int) -> list[int]:
    """The strides at which a line of the source has the element next to the anchor."""
    found: set[int] = set()
    if line.at + 1 < len(line.data):
        found.update(map(int, np.flatnonzero(source[here + 1 :] == line.data[line.at + 1]) + 1))
    if line.at > 0:
        found.update(map(int, np.flatnonzero(source[:here][::-1] == line.data[line.at - 1]) + 1))
    return sorted(found)


def _agreeing(line: _Line, source: Array, here: int, stride: int) -> tuple[int, int]:
    """How many elements before and behind the anchor equal those of the source's line at a stride; beyond the ends of
    that line are zeros."""
    before = _equal_first(line.data[: line.at][::-1], source[:here][::-1][stride - 1 :: stride])
    return before, _equal_first(line.data[line.at + 1 :], source[here + 1 :][stride - 1 :: stride])


def _equal_first(data: Array, other: Array) -> int:
    """How many elements of the data, from the first on, equal those of another line and the zeros behind it."""
    done, piece = 0, 64
    while done < len(data):
        part, wanted = data[done : done + piece], other[done : done + piece]
        equal = np.concatenate([part[: len(wanted)] == wanted[: len(part)], part[len(wanted) :] == 0])
        if not equal.all():
            return done + int(equal.argmin())
        done += len(part)
        piece *= 4
    return done


def _offsets(layout: Layout, anchor: _Anchor, extents: Sequence[int]) -> list[int] | None:
    """The padding before each axis; None unless the digits are all those of every axis, each once."""
    found = []
    for axis, extent in enumerate(extents):
        reach, place = 1, 0
        digits = sorted(digit for group in layout for digit in group if digit.axis == axis)
        if any(one.inner == other.inner for one, other in pairwise(digits)):
            return None
        for digit in digits:
            if digit.inner not in (reach, extent):
                return None
            place += digit.at * reach
            reach *= digit.length
        offset = place - anchor.source[axis]
        if offset < 0 or offset + extent > reach:
            return None
        found.append(offset)
    return found


def _laid(source: Array, anchor: _Anchor, layout: Layout) -> Array:
    """The source in a layout, flat dimensions in order."""
    digits = [digit for group in layout for digit in reversed(group)]
    outermost = sorted((digit for digit in digits if digit.axis >= 0), key=lambda each: (each.axis, -each.inner))
    reaches = [math.prod(digit.length for digit in outermost if digit.axis == axis) for axis in range(source.ndim)]
    padded = np.zeros(reaches, source.dtype)
    offsets = _offsets(layout, anchor, source.shape) or ()
    padded[tuple(slice(start, start + extent) for start, extent in zip(offsets, source.shape, strict=True))] = source
    pieces = padded.reshape([digit.length for digit in outermost])
    order = [outermost.index(digit) for digit in digits if digit.axis >= 0]
    laid = pieces.transpose(order)
    for place, digit in enumerate(digits):
        if digit.axis < 0:
            before = (digit.at, digit.length - 1 - digit.at)
            widths = [before if each == place else (0, 0) for each in range(laid.ndim + 1)]
            laid = np.pad(np.expand_dims(laid, place), widths)
    return np.ascontiguousarray(laid)
