"""Memory formats: the arrangement of a tensor in memory, as the sequence of its axes' atoms.

A tensor's axes are numbered as in the source graph. An **atom** is an axis or one factor of an axis; a memory format is
the sequence of all atoms from outermost to innermost. Its **normal form** drops atoms of extent 1, whose position does
not matter, and merges neighbours that are consecutive factors of one axis. Two formats are the same memory iff their
normal forms are equal: a transpose that moves only unit axes, and a reshape that keeps the atoms' order, cost nothing.

    >>> nhwc = order_of((0, 2, 3, 1))
    >>> normal_form(nhwc, (8, 64, 1, 1)) == normal_form(order_of((0, 1, 2, 3)), (8, 64, 1, 1))
    True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from relayout.layout.strides import is_open, part_of
from relayout.layout.terms import GENERATED, rounded_down

Extent = int | str | None
"""The length of an axis: an int, a symbol's name, or None if unknown."""


class Atom(NamedTuple):
    """The digits of an axis's index between the strides `inner` (included) and `outer` (excluded).

    `outer` is 0 if the atom reaches the end of the axis, so `Atom(1)` is axis 1 as a whole, `Atom(1, 16)` its blocks of
    16, and `Atom(1, 1, 16)` the index within a block.

    An `outer` beyond the axis's extent pads the axis: `Atom(1, 1, 32)` on an axis of extent 24 is its 24 values and
    8 zeros. A unit axis is never padded: it has no place among the atoms, so that its zeros would have none.
    """

    axis: int
    inner: int = 1
    outer: int = 0

    @property
    def is_whole(self) -> bool:
        return self.inner == 1 and self.outer == 0


MemoryFormat = tuple[Atom, ...]
"""The atoms of all axes, outermost first."""

Box = tuple[int, int, str, str]
"""A black box: the axis and the inner stride of the atom that carries it, its namespace, its data."""


class BlackBoxFormat(tuple[Atom, ...]):
    """A memory format whose dimensions carry black boxes, sorted.

    It differs from the same format without black boxes, and only the backend can convert between the two. Functions of
    formats see the atoms and return plain formats. `units[i]` is True if dimension `i` has extent 1: a dimension with a
    black box is never reshaped, not even by a unit dimension.
    """

    boxes: tuple[Box, ...]
    units: tuple[bool, ...]

    def __new__(cls, format_: MemoryFormat, boxes: Iterable[Box], units: tuple[bool, ...] = ()) -> BlackBoxFormat:
        self = super().__new__(cls, format_)
        self.boxes, self.units = tuple(sorted(boxes)), units
        return self

    def __eq__(self, other: object) -> bool:
        has_same_boxes = isinstance(other, BlackBoxFormat) and (self.boxes, self.units) == (other.boxes, other.units)
        return has_same_boxes and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.boxes, self.units))


def boxes_of(format_: MemoryFormat) -> tuple[Box, ...]:
    """The black boxes that a memory format carries."""
    return format_.boxes if isinstance(format_, BlackBoxFormat) else ()


@lru_cache(maxsize=1 << 16)
def is_whole(format_: MemoryFormat) -> bool:
    """Whether no axis is tiled or padded."""
    return all(atom.is_whole for atom in format_)


@cache
def _whole(axis: int) -> Atom:
    return Atom(axis)


@cache
def order_of(axes: tuple[int, ...]) -> MemoryFormat:
    """The memory format of whole axes, outermost first."""
    return tuple(_whole(axis) for axis in axes)


@cache
def source_order(rank: int) -> MemoryFormat:
    """The identity format: the axes as in the source graph."""
    return order_of(tuple(range(rank)))


def atom_extent(atom: Atom, extents: Sequence[Extent]) -> Extent:
    """The number of values of the atom: a quotient where it is the outer part of an axis whose extent is a name, and a
    factor of that extent where a stride is open."""
    extent = extents[atom.axis]
    if atom.outer:
        if isinstance(extent, str) and is_open(atom.outer):
            return _part_of(extent, atom.inner, atom.outer)
        return atom.outer // atom.inner
    if atom.inner == 1 or extent is None:
        return extent
    return extent // atom.inner if isinstance(extent, int) else _part_of(extent, atom.inner)


@lru_cache(maxsize=1 << 16)
def _part_of(extent: str, inner: int, outer: int = 0) -> Extent:
    """The part of a named extent between two strides. A Reshape that cuts the axis so runs only where the inner one
    divides it."""
    term = part_of(extent, inner, outer)
    if term is None or GENERATED in extent:
        return None
    part = rounded_down(term) if term.names else term
    return str(part) if part.names else int(part.factor) if part.factor.denominator == 1 else None


def has_open_stride(atom: Atom) -> bool:
    """Whether the atom is cut at a stride that is no number. No layout has a word for such a format."""
    return is_open(atom.inner) or is_open(atom.outer)


def padded_extent(format_: Iterable[Atom], axis: int, extents: Sequence[Extent]) -> Extent:
    """The number of values of the axis in this format, padding included."""
    end = max((atom.outer for atom in format_ if atom.axis == axis), default=0)
    extent = extents[axis]
    return end if isinstance(extent, int) and end > extent else extent


def is_padded(format_: Iterable[Atom], extents: Sequence[Extent]) -> bool:
    """Whether some axis is longer in memory than in the graph."""
    return any(isinstance(extent := extents[atom.axis], int) and atom.outer > extent for atom in format_)


def place_after_neighbour(axes: Sequence[int], axis: int) -> int:
    """The place among these axes of a further one: after its nearest neighbour in the source."""
    before = [(own, place) for place, own in enumerate(axes) if own < axis]
    return max(before)[1] + 1 if before else 0


@lru_cache(maxsize=1 << 16)
def with_units(format_: MemoryFormat, extents: tuple[Extent, ...]) -> MemoryFormat:
    """The format with every missing unit axis inserted after its neighbour in the source; black boxes are kept."""
    present = {atom.axis for atom in format_}
    found = list(format_)
    for axis in range(len(extents)):
        if axis not in present:
            found.insert(place_after_neighbour([atom.axis for atom in found], axis), Atom(axis))
    if isinstance(format_, BlackBoxFormat):
        return BlackBoxFormat(tuple(found), format_.boxes, format_.units)
    return tuple(found)


@lru_cache(maxsize=1 << 16)
def normal_form(format_: MemoryFormat, extents: tuple[Extent, ...]) -> MemoryFormat:
    """Drop the atoms of extent 1, then merge neighbours that are consecutive factors of one axis."""
    merged: list[Atom] = []
    for atom in format_:
        if atom_extent(atom, extents) == 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.axis == atom.axis and last.inner == atom.outer:
            merged[-1] = Atom(atom.axis, atom.inner, last.outer)
        else:
            merged.append(atom)
    # One spelling only: a factor that reaches the end of its axis has outer = 0.
    return tuple(Atom(a.axis, a.inner) if a.outer and a.outer == extents[a.axis] else a for a in merged)
