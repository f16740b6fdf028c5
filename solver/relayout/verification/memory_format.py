"""The memory format of a value relative to its source, read from the annotations `relayout.order` and `relayout.atoms`.

This class is the verifier's own, and shares no code with `relayout.layout` on purpose. An axis's index is a number,
and an **atom** is some of its digits: those between the strides `inner` (included) and `outer` (excluded), where outer
0 means up to the end of the axis. A value's dimensions are groups of atoms, outermost first; atoms that reach beyond an
axis's extent pad it with zeros.

    >>> blocks = parse_atoms("0,1:16:0,2,1:1:16")
    >>> blocks.shape((1, 64, 7))
    (1, 4, 7, 16)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from relayout.layout.metadata_keys import ATOMS_KEY, ORDER_KEY

Extent = int | str | ir.SymbolicDim | None

_ATOM = re.compile(r"(\d+)(?::(\d+):(\d+))?", re.ASCII)


class Atom(NamedTuple):
    """The digits of an axis's index between the strides `inner` and `outer`."""

    axis: int
    inner: int = 1
    outer: int = 0

    @property
    def is_whole(self) -> bool:
        return self.inner == 1 and self.outer == 0

    def __str__(self) -> str:
        return str(self.axis) if self.is_whole else f"{self.axis}:{self.inner}:{self.outer}"


class MemoryFormat(Struct, frozen=True):
    """A value's dimensions, each a group of atoms, outermost first; a dimension of no atoms has extent 1."""

    dims: tuple[tuple[Atom, ...], ...]

    def __str__(self) -> str:
        return ",".join("+".join(map(str, group)) for group in self.dims)

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The axis in each dimension, where every dimension is one whole axis."""
        axes = tuple(group[0].axis for group in self.dims if len(group) == 1 and group[0].is_whole)
        return axes if sorted(axes) == list(range(len(self.dims))) else None

    @property
    def axes(self) -> tuple[int | None, ...]:
        """The axis of each dimension, its elements perhaps permuted; None for a part of an axis, or several."""
        atoms = self._atoms()
        found = [{atom.axis for atom in group} for group in self.dims]
        return tuple(
            group[0].axis if len(axes) == 1 and len(atoms[group[0].axis]) == len(group) else None
            for axes, group in zip(found, self.dims, strict=True)
        )

    def fault(self, extents: Sequence[Extent] | None = None) -> str | None:
        """The fault of the format for a source of these extents, as far as they are known; None if it is valid."""
        atoms = self._atoms()
        rank = len(extents) if extents is not None else max(atoms, default=-1) + 1
        for axis in sorted({*range(rank), *atoms}):
            extent = extents[axis] if extents is not None and axis < rank else None
            if axis >= rank:
                return f"axis {axis} of {rank}"
            if axis not in atoms:
                if extent != 1:
                    return f"no axis {axis}"
                continue
            found = _fault_of_axis(axis, atoms[axis], extent)
            if found is not None:
                return found
        return None

    def shape(self, extents: Sequence[Extent]) -> tuple[Extent, ...]:
        """The extents of the dimensions, None where one is not known; only for a format without a fault."""
        return tuple(self._extent(group, extents) for group in self.dims)

    def source_extents(self, shape: Sequence[Extent]) -> tuple[Extent, ...] | None:
        """The extents of the source of a value of this shape; None where padding may hide them."""
        if not self.may_have(shape):
            return None
        found: dict[int, Extent] = {}
        for group, extent in zip(self.dims, shape, strict=True):
            for atom in (atom for atom in group if not atom.outer):
                closed = math.prod(other.outer // other.inner for other in group if other.outer)
                if len(group) == 1:
                    rest: Extent = extent
                else:
                    is_known = isinstance(extent, int) and sum(not other.outer for other in group) == 1
                    rest = extent // closed if is_known else None  # type: ignore[operator]
                found[atom.axis] = rest if atom.inner == 1 else rest * atom.inner if isinstance(rest, int) else None
        axes = {atom.axis for group in self.dims for atom in group}
        return tuple(found[axis] for axis in range(len(axes))) if found.keys() == axes else None

    def may_have(self, shape: Sequence[Extent]) -> bool:
        """Whether some source can have this shape in this format."""
        if len(shape) != len(self.dims):
            return False
        several = {a.axis for group, extent in zip(self.dims, shape, strict=True) if extent != 1 for a in group}
        for group, extent in zip(self.dims, shape, strict=True):
            atoms = [atom for atom in group if atom.axis in several]
            closed = math.prod(atom.outer // atom.inner for atom in atoms if atom.outer)
            is_closed = all(atom.outer for atom in atoms)
            if isinstance(extent, int) and (extent != closed if is_closed else extent % closed):
                return False
        return True

    def reach(self, axis: int, extent: int) -> int:
        """The extent of the axis with its padding."""
        outer = [atom.outer for group in self.dims for atom in group if atom.axis == axis]
        return max([extent, *outer]) if extent != 1 else 1

    def of(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """The source's array in this format; None where the two do not fit."""
        if self.fault(array.shape) is not None:
            return None
        atoms = self._atoms()
        reaches = [self.reach(axis, extent) for axis, extent in enumerate(array.shape)]
        padded = np.zeros(reaches, array.dtype)
        padded[tuple(slice(extent) for extent in array.shape)] = array
        tiles = [atom for axis in range(array.ndim) for atom in reversed(atoms.get(axis, ()))]
        sizes = {a: (a.outer or reaches[a.axis]) // a.inner if reaches[a.axis] != 1 else 1 for a in tiles}
        pieces = padded.reshape([sizes[atom] for atom in tiles])
        permuted = pieces.transpose([tiles.index(atom) for group in self.dims for atom in group])
        shape = [math.prod(sizes[atom] for atom in group) for group in self.dims]
        return np.ascontiguousarray(permuted.reshape(shape))

    def back(self, array: np.ndarray[Any, Any], extents: Sequence[int]) -> np.ndarray[Any, Any] | None:
        """The source's array of these extents, from an array in this format; None where the two do not fit."""
        if self.fault(extents) is not None or array.shape != self.shape(extents):
            return None
        positions = self.of(np.arange(1, math.prod(extents) + 1, dtype=np.int64).reshape(tuple(extents)))
        if positions is None:
            return None
        flat = np.zeros(math.prod(extents) + 1, array.dtype)
        flat[positions.reshape(-1)] = array.reshape(-1)
        return flat[1:].reshape(tuple(extents))

    def _atoms(self) -> dict[int, list[Atom]]:
        """Each axis's atoms, innermost first."""
        found: dict[int, list[Atom]] = {}
        for atom in sorted((atom for group in self.dims for atom in group), key=lambda atom: atom.inner):
            found.setdefault(atom.axis, []).append(atom)
        return found

    def _extent(self, group: tuple[Atom, ...], extents: Sequence[Extent]) -> Extent:
        if len(group) == 1 and group[0].is_whole:
            return extents[group[0].axis]
        product = 1
        for atom in group:
            if extents[atom.axis] == 1:
                continue
            end: Extent = atom.outer or extents[atom.axis]
            if not isinstance(end, int):
                return None
            product *= end // atom.inner
        return product


def whole(axes: Sequence[int]) -> MemoryFormat:
    """The format that permutes whole axes."""
    return MemoryFormat(tuple((Atom(axis),) for axis in axes))


def parse_atoms(text: str) -> MemoryFormat | None:
    """Parse `relayout.atoms`; None for an invalid list of atoms."""
    dims: list[tuple[Atom, ...]] = []
    for part in text.split(","):
        matches = [_ATOM.fullmatch(atom) for atom in part.split("+")] if part else []
        atoms = [Atom(*(int(number) for number in match.groups() if number is not None)) for match in matches if match]
        if len(atoms) != len(matches):
            return None
        dims.append(tuple(atoms))
    return MemoryFormat(tuple(dims))


def memory_format_of(value: ir.Value) -> MemoryFormat | None:
    """The annotated format of a value; None if it has none or an invalid one."""
    metadata = value.metadata_props
    if ATOMS_KEY in metadata:
        return parse_atoms(metadata[ATOMS_KEY])
    text = metadata.get(ORDER_KEY)
    try:
        return None if text is None else whole([int(axis) for axis in text.split(",")] if text else [])
    except ValueError:
        return None


def _fault_of_axis(axis: int, atoms: Sequence[Atom], extent: Extent) -> str | None:
    """The fault of one axis's atoms, innermost first, or None; `extent` is an int if known."""
    stride = 1
    for index, atom in enumerate(atoms):
        if atom.inner < 1 or (atom.outer and (atom.outer <= atom.inner or atom.outer % atom.inner)):
            return f"no digits {atom.inner}:{atom.outer} of axis {axis}"
        if atom.inner != stride:
            what = "overlap" if atom.inner < stride or stride == 0 else "have a gap"
            return f"atoms of axis {axis} that {what} at stride {min(stride, atom.inner)}"
        if not atom.outer and index < len(atoms) - 1:
            return f"atoms of axis {axis} that overlap at stride {atoms[index + 1].inner}"
        stride = atom.outer
    last = atoms[-1]
    if not isinstance(extent, int) or extent == 1:
        return None  # a unit axis is fine: its atoms are one element each
    if last.outer and last.outer < extent:
        return f"atoms of axis {axis} that end at {last.outer} of {extent}"
    if not last.outer and extent % last.inner:
        return f"blocks of {last.inner} that do not divide the {extent} of axis {axis}"
    return None
