"""Views: a tensor that aliases the memory of another (Transpose, Reshape, Squeeze, ...), as a memref view in MLIR.

Each axis of the view is a sequence of atoms of the base tensor, so a memory format of one is a memory format of the
other if their factors nest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from math import prod
from typing import NamedTuple

from msgspec import Struct

from relayout.layout.memory_format import (
    Atom,
    Extent,
    MemoryFormat,
    atom_extent,
    has_open_stride,
    is_whole,
    normal_form,
    source_order,
)
from relayout.layout.strides import UNKNOWN, is_unknown, stride_of
from relayout.layout.terms import Term, extent_term, product


class _Range(NamedTuple):
    """Strides [lo, hi) of one axis are the strides [target_lo, target_hi) of axis `target`; hi 0: the axis's end."""

    lo: int
    hi: int
    target: int
    target_lo: int
    target_hi: int


_Ranges = tuple[tuple[_Range, ...], ...]


class View(Struct, frozen=True):
    """An index map from the axes of a tensor to the memory of a base tensor.

    `axes[j]` has the base's atoms that form axis j of the view, outermost first: one whole atom if the axis is the
    base's, none for a unit axis that the base lacks, several if axes were fused, a factor if an axis was split.
    """

    axes: tuple[MemoryFormat, ...]
    extents: tuple[Extent, ...]
    base_extents: tuple[Extent, ...]
    _down: _Ranges
    _up: _Ranges
    is_plain: bool

    @classmethod
    def of(cls, axes: Iterable[MemoryFormat], extents: tuple[Extent, ...], base_extents: tuple[Extent, ...]) -> View:
        """The view with these atoms. No tile of an axis cuts an inner atom of open extent. The strides above such an
        atom are known only where the axis's extent is the product of those of its atoms."""
        axes = tuple(axes)
        down: list[tuple[_Range, ...]] = []
        up: list[list[_Range]] = [[] for _ in base_extents]
        for j, atoms in enumerate(axes):
            ranges: list[_Range] = []
            stride = 1
            is_product = prod([stride_of(atom_extent(atom, base_extents)) for atom in atoms]) == stride_of(extents[j])
            for index, atom in enumerate(reversed(atoms)):
                if index == len(atoms) - 1:
                    high = 0
                else:
                    extent = atom_extent(atom, base_extents)
                    high = stride * (stride_of(extent) if is_product or isinstance(extent, int) else UNKNOWN)
                ranges.append(_Range(stride, high, atom.axis, atom.inner, atom.outer))
                up[atom.axis].append(_Range(atom.inner, atom.outer, j, stride, high))
                stride = high
            down.append(tuple(ranges))
        plain = all(len(atoms) <= 1 and all(a.is_whole for a in atoms) for atoms in axes)
        return cls(axes, extents, base_extents, tuple(down), tuple(tuple(sorted(p)) for p in up), plain)

    @classmethod
    def identity(cls, extents: tuple[Extent, ...]) -> View:
        """The view of a base tensor by itself."""
        return _identity(extents)

    def to_base(self, format_: MemoryFormat) -> MemoryFormat | None:
        """The format of the base, in normal form, for a format of the view; None if the factors do not nest, or if one
        cuts an axis of the base at an open stride."""
        if self.is_plain and is_whole(format_):
            return normal_form(tuple(chain.from_iterable(self.axes[a.axis] for a in format_)), self.base_extents)
        return _mapped(format_, self._down, self.extents, self.base_extents)

    def from_base(self, format_: MemoryFormat) -> MemoryFormat | None:
        """The inverse of `to_base`, without the unit axes that the base lacks. The strides may be open: of an axis
        `h*w`, `h` has the stride `w`."""
        return _mapped(format_, self._up, self.base_extents, self.extents, may_be_open=True)

    def then(self, axes: Iterable[MemoryFormat], extents: tuple[Extent, ...]) -> View | None:
        """The view of this view, whose `axes` are given in this view's atoms; None if the factors do not nest."""
        through: list[MemoryFormat] = []
        for atoms in axes:
            mapped: list[Atom] = []
            for atom in atoms:
                if atom_extent(atom, self.extents) == 1:
                    continue
                part = _factors(atom, self._down)
                if part is None:
                    return None
                mapped += part
            through.append(normal_form(tuple(mapped), self.base_extents))
        return View.of(through, extents, self.base_extents)

    def factors_of(self, axis: int, extents: Sequence[Extent]) -> list[MemoryFormat] | None:
        """The atoms of an axis by factors of these extents, outermost first; None where an atom would be cut."""
        found: list[MemoryFormat] = []
        left = list(self.axes[axis])
        for extent in extents:
            wanted, ends = extent_term(extent), range(1, len(left) + 1)
            end = next((end for end in ends if product(map(self._term, left[:end])) == wanted), None)
            if end is None:
                return None
            found.append(tuple(left[:end]))
            del left[:end]
        return None if left else found

    def with_base_split(self, split: Mapping[int, Sequence[Extent]]) -> View:
        """The same view of the base after each of these axes has become several of these extents, outermost first. The
        view has these axes whole."""
        factors = [split.get(axis, (extent,)) for axis, extent in enumerate(self.base_extents)]
        first = [0, *accumulate(map(len, factors))]

        def atoms(atom: Atom) -> MemoryFormat:
            return tuple(
                [Atom(place, atom.inner, atom.outer) for place in range(first[atom.axis], first[atom.axis + 1])]
            )

        axes = [tuple(chain.from_iterable(map(atoms, group))) for group in self.axes]
        return View.of(axes, self.extents, tuple(chain.from_iterable(factors)))

    def _term(self, atom: Atom) -> Term | None:
        return extent_term(atom_extent(atom, self.base_extents))


@lru_cache(maxsize=1 << 16)
def _identity(extents: tuple[Extent, ...]) -> View:
    return View.of(((atom,) for atom in source_order(len(extents))), extents, extents)


@lru_cache(maxsize=1 << 15)
def _mapped(
    format_: MemoryFormat,
    ranges: _Ranges,
    extents: tuple[Extent, ...],
    target_extents: tuple[Extent, ...],
    *,
    may_be_open: bool = False,
) -> MemoryFormat | None:
    """The format in the atoms of the other tensor; None if the factors do not nest, or one has a stride that is unknown
    or, unless it may be, open."""
    found: list[Atom] = []
    for atom in format_:
        if atom_extent(atom, extents) == 1:
            continue
        factors = _factors(atom, ranges)
        if factors is None or (not may_be_open and any(map(has_open_stride, factors))):
            return None
        found += factors
    order = normal_form(tuple(found), target_extents)
    return None if any(is_unknown(atom.inner) or is_unknown(atom.outer) for atom in order) else order


def _factors(atom: Atom, ranges: _Ranges) -> list[Atom] | None:
    """The atom as atoms of the other tensor, outermost first; None if the factors do not nest."""
    found: list[Atom] = []
    for range_ in ranges[atom.axis]:
        low = max(atom.inner, range_.lo)
        high = min(atom.outer, range_.hi) if atom.outer and range_.hi else atom.outer or range_.hi
        if high and low >= high:
            continue
        if low % range_.lo or high % low:
            return None
        inner = range_.target_lo * (low // range_.lo)
        outer = range_.target_hi if high == range_.hi else range_.target_lo * (high // range_.lo)
        if range_.target_hi and outer > range_.target_hi:
            return None  # padding of one factor is not padding of the whole axis
        found.append(Atom(range_.target, inner, outer))
    return found[::-1]
