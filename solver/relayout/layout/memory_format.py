"""Memory formats: how a tensor lies in memory, as the order of its axes' atoms.

A tensor's axes are numbered as in the source graph. An **atom** is an axis or one factor of an axis; a memory format is
the sequence of all atoms from outermost to innermost. Its **normal form** drops atoms of extent 1 (they have no place)
and merges neighbours that are consecutive factors of one axis. Two formats are the same memory iff their normal forms
are equal: a transpose that moves only unit axes, and a reshape that keeps the atoms' order, cost nothing.

    >>> nhwc = order_of((0, 2, 3, 1))
    >>> normal_form(nhwc, (8, 64, 1, 1)) == normal_form(order_of((0, 1, 2, 3)), (8, 64, 1, 1))
    True

A **view** says how one tensor's axes re-read another's memory (Transpose, Reshape, Squeeze, ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import NamedTuple

__all__ = [
    "Atom",
    "Box",
    "Boxed",
    "Extent",
    "MemoryFormat",
    "View",
    "atom_extent",
    "boxes_of",
    "is_padded",
    "normal_form",
    "order_of",
    "padded_extent",
    "source_order",
    "with_units",
]

Extent = int | str | None
"""The length of an axis: an int, a symbol's name, or None where nothing is known."""


class Atom(NamedTuple):
    """The digits of an axis's index between the strides `inner` (included) and `outer` (excluded).

    `outer` is 0 where the atom reaches up to the end of the axis, so `Atom(1)` is axis 1 as a whole, `Atom(1, 16)` its
    blocks of 16, and `Atom(1, 1, 16)` the place within a block.

    An `outer` beyond the axis's extent pads the axis: `Atom(1, 1, 32)` on an axis of extent 24 are its 24 values and
    8 zeros. A unit axis is never padded, for it has no place.
    """

    axis: int
    inner: int = 1
    outer: int = 0

    @property
    def is_whole(self) -> bool:
        return self.inner == 1 and self.outer == 0


MemoryFormat = tuple[Atom, ...]

Box = tuple[int, int, str, str]
"""A black box: the axis and the inner stride of the atom that carries it, its namespace, its data."""


class Boxed(tuple[Atom, ...]):
    """An order in which dimensions carry black boxes, sorted: other memory than the same order without them, of which
    nobody knows the way to it but the backend. Functions of orders see the atoms alone and give plain orders.

    `units` says of each dimension whether its extent is 1: what is in a box is not reshaped, not even by these.
    """

    boxes: tuple[Box, ...]
    units: tuple[bool, ...]

    def __new__(cls, order: MemoryFormat, boxes: Iterable[Box], units: tuple[bool, ...] = ()) -> Boxed:
        made = super().__new__(cls, order)
        made.boxes, made.units = tuple(sorted(boxes)), units
        return made

    def __eq__(self, other: object) -> bool:
        alike = isinstance(other, Boxed) and (self.boxes, self.units) == (other.boxes, other.units)
        return alike and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.boxes, self.units))


def boxes_of(order: MemoryFormat) -> tuple[Box, ...]:
    """The black boxes that an order carries."""
    return order.boxes if isinstance(order, Boxed) else ()


@cache
def _whole(axis: int) -> Atom:
    return Atom(axis)


@cache
def order_of(axes: tuple[int, ...]) -> MemoryFormat:
    """The order of whole axes, outermost first."""
    return tuple(_whole(axis) for axis in axes)


@cache
def source_order(rank: int) -> MemoryFormat:
    """The axes as in the source graph."""
    return order_of(tuple(range(rank)))


def atom_extent(atom: Atom, extents: Sequence[Extent]) -> Extent:
    """How many values the atom takes; None where the axis is split and its extent is not a known number."""
    if atom.outer:
        return atom.outer // atom.inner
    extent = extents[atom.axis]
    if atom.inner == 1:
        return extent
    return extent // atom.inner if isinstance(extent, int) else None


def padded_extent(order: Iterable[Atom], axis: int, extents: Sequence[Extent]) -> Extent:
    """How many values the axis takes in this order, zeros included."""
    reach = max((atom.outer for atom in order if atom.axis == axis), default=0)
    extent = extents[axis]
    return reach if isinstance(extent, int) and reach > extent else extent


def is_padded(order: Iterable[Atom], extents: Sequence[Extent]) -> bool:
    """Whether some axis is longer in memory than it is in the graph."""
    for atom in order:
        extent = extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent:
            return True
    return False


@cache
def with_units(order: MemoryFormat, extents: tuple[Extent, ...]) -> MemoryFormat:
    """The order with the axes that have no place in it, each after its neighbour in the source, and with its boxes."""
    placed = {atom.axis for atom in order}
    found = list(order)
    for axis in range(len(extents)):
        if axis not in placed:
            before = [place for place, atom in enumerate(found) if atom.axis < axis]
            found.insert(max(before, key=lambda place: (found[place].axis, place)) + 1 if before else 0, Atom(axis))
    return Boxed(tuple(found), order.boxes, order.units) if isinstance(order, Boxed) else tuple(found)


@cache
def normal_form(order: MemoryFormat, extents: tuple[Extent, ...]) -> MemoryFormat:
    """Drop the atoms of extent 1, then merge neighbours that are consecutive factors of one axis."""
    merged: list[Atom] = []
    for atom in order:
        if atom_extent(atom, extents) == 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.axis == atom.axis and last.inner == atom.outer:
            merged[-1] = Atom(atom.axis, atom.inner, last.outer)
        else:
            merged.append(atom)
    # One name for each: a factor that reaches the end of its axis says so by outer = 0.
    return tuple(Atom(a.axis, a.inner) if a.outer and a.outer == extents[a.axis] else a for a in merged)


class _Piece(NamedTuple):
    """Strides [lo, hi) of one axis are the strides [target_lo, target_hi) of axis `target`; hi 0 = up to the end."""

    lo: int
    hi: int
    target: int
    target_lo: int
    target_hi: int


_Pieces = tuple[tuple[_Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class View:
    """How a tensor's axes re-read the memory of a root tensor.

    `axes[j]` holds the root's atoms that make up axis j of the view, outermost first: one whole atom where an axis is
    kept, none for a unit axis that the root does not have, several where axes merged, a factor where one was split.
    """

    axes: tuple[MemoryFormat, ...]
    extents: tuple[Extent, ...]
    base_extents: tuple[Extent, ...]
    _down: _Pieces
    _up: _Pieces
    is_plain: bool

    @classmethod
    def of(
        cls, axes: Iterable[MemoryFormat], extents: tuple[Extent, ...], base_extents: tuple[Extent, ...]
    ) -> View | None:
        """The view with these atoms, or None where an inner atom's extent is unknown so that strides have no number."""
        axes = tuple(axes)
        down: list[tuple[_Piece, ...]] = []
        up: list[list[_Piece]] = [[] for _ in base_extents]
        for j, atoms in enumerate(axes):
            pieces: list[_Piece] = []
            stride = 1
            for place, atom in enumerate(reversed(atoms)):
                if place == len(atoms) - 1:
                    high = 0
                else:
                    extent = atom_extent(atom, base_extents)
                    if not isinstance(extent, int):
                        return None
                    high = stride * extent
                pieces.append(_Piece(stride, high, atom.axis, atom.inner, atom.outer))
                up[atom.axis].append(_Piece(atom.inner, atom.outer, j, stride, high))
                stride = high
            down.append(tuple(pieces))
        plain = all(len(atoms) <= 1 and all(a.is_whole for a in atoms) for atoms in axes)
        return cls(axes, extents, base_extents, tuple(down), tuple(tuple(sorted(p)) for p in up), plain)

    @classmethod
    def identity(cls, extents: tuple[Extent, ...]) -> View:
        view = _identity(extents)
        assert view is not None
        return view

    def to_base(self, order: MemoryFormat) -> MemoryFormat | None:
        """An order of the view's axes in normal form, as an order of the root's; None where the factors do not nest."""
        if self.is_plain and all(a.is_whole for a in order):
            return normal_form(tuple(chain.from_iterable(self.axes[a.axis] for a in order)), self.base_extents)
        return _carry(order, self._down, self.extents, self.base_extents)

    def from_base(self, order: MemoryFormat) -> MemoryFormat | None:
        """The same the other way round. Unit axes that the root does not have do not appear."""
        return _carry(order, self._up, self.base_extents, self.extents)

    def then(self, axes: Iterable[MemoryFormat], extents: tuple[Extent, ...]) -> View | None:
        """The view of this view: `axes` are given in this view's atoms; None where they do not nest."""
        through: list[MemoryFormat] = []
        for atoms in axes:
            mapped: list[Atom] = []
            for atom in atoms:
                if atom_extent(atom, self.extents) == 1:
                    continue
                part = _cut(atom, self._down)
                if part is None:
                    return None
                mapped += part
            through.append(normal_form(tuple(mapped), self.base_extents))
        return View.of(through, extents, self.base_extents)


@cache
def _identity(extents: tuple[Extent, ...]) -> View | None:
    return View.of(((atom,) for atom in source_order(len(extents))), extents, extents)


def _carry(
    order: MemoryFormat, pieces: _Pieces, extents: tuple[Extent, ...], target_extents: tuple[Extent, ...]
) -> MemoryFormat | None:
    carried: list[Atom] = []
    for atom in order:
        if atom_extent(atom, extents) == 1:
            continue
        part = _cut(atom, pieces)
        if part is None:
            return None
        carried += part
    return normal_form(tuple(carried), target_extents)


def _cut(atom: Atom, pieces: _Pieces) -> list[Atom] | None:
    """The atom's pieces on the other side, outermost first; None where a boundary of one falls inside the other."""
    found: list[Atom] = []
    for piece in pieces[atom.axis]:
        low = max(atom.inner, piece.lo)
        high = min(atom.outer, piece.hi) if atom.outer and piece.hi else atom.outer or piece.hi
        if high and low >= high:
            continue
        if low % piece.lo or high % low:
            return None
        inner = piece.target_lo * (low // piece.lo)
        outer = piece.target_hi if high == piece.hi else piece.target_lo * (high // piece.lo)
        if piece.target_hi and outer > piece.target_hi:
            return None  # what pads a factor of an axis is no padding of that axis
        found.append(Atom(piece.target, inner, outer))
    return found[::-1]
