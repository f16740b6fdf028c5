"""Elision of operators that compute nothing: their result aliases their input.

SpaceToDepth is a Transpose between two Reshapes. As an operator it moves its data. When it is elided, nothing is moved:
its consumers read the aliased memory, or a conversion of it like of any other tensor. Both are alternatives of the
node. In the first its two tensors have the operator's formats; in the second one order of their common factors gives
both formats. A Reshape between tensors without common factors is elided in the orders of the axes that it reshapes
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod

from msgspec import Struct

from relayout.candidates.alternatives import FixedLowering, Port
from relayout.candidates.tensors import Operand
from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, atom_extent, normal_form, order_of, with_units
from relayout.layout.view import View
from relayout.ops import Axes, Free, Relabel, free


class Elision(Struct, frozen=True):
    """The pieces that both sides have in common. `rule` allows them in any order; `operands` maps them to the two
    tensors. `sides` has, for the input and for the result, the atoms of each piece and the extents."""

    rule: Free
    operands: tuple[tuple[Operand, Axes], ...]
    sides: tuple[tuple[tuple[MemoryFormat, ...], tuple[Extent, ...]], ...]

    def lowering(self, order: MemoryFormat) -> FixedLowering:
        """The lowering of the elided node when the pieces are in this order."""
        read, given = (one_each(_own(order, atoms, extents)) for atoms, extents in self.sides)
        return FixedLowering((read,), (given,), is_elided=True)

    def carried(self, dims: Dims, *, back: bool = False) -> Dims | None:
        """The input tensor's dimensions in atoms of the result's, or the reverse if `back`; None where they do not
        nest."""
        (source, _), (result, _) = reversed(self.operands) if back else self.operands
        found: list[MemoryFormat] = []
        for group in dims:
            own = source.view.from_base(group)
            carried = result.view.to_base(own) if own is not None else None
            if carried is None:
                return None
            found.append(carried)
        return tuple(found)


def elision_of(relabel: Relabel, source: Port, result: Port) -> Elision | None:
    """The elision of a node whose `result` is a view of `source`. Its pieces are the common factors of the axes; where
    the tensors do not have them, the axes that are reshaped together. None where they do not have those either, and
    where the extent 1 of an axis is only declared."""
    before, after = source.operand.view, result.operand.view
    for pieces in (
        _common_factors(relabel, before.extents),
        _reshaped_together(relabel, before.extents, after.extents),
    ):
        found = _elision(pieces, source, result) if pieces is not None else None
        if found is not None:
            return found
    return None


_Piece = tuple[MemoryFormat, MemoryFormat, Extent]
"""The atoms of the input's axes and of the result's that are one piece, outermost first, and its extent."""


def _elision(pieces: Sequence[_Piece], source: Port, result: Port) -> Elision | None:
    before, after = source.operand.view, result.operand.view
    reads, gives, extents = (tuple(each) for each in zip(*pieces, strict=True)) if pieces else ((), (), ())
    views = before.then(reads, extents), after.then(gives, extents)
    axes = tuple(range(len(pieces)))
    operands: list[tuple[Operand, Axes]] = []
    for port, view in zip((source, result), views, strict=True):
        if view is None or not _is_all(view):
            return None
        operands.append((Operand(port.operand.tensor, view, port.operand.value), axes))
    tileable = axes if all(len(each) == 1 for each in (*reads, *gives)) else ()
    sides = (reads, before.extents), (gives, after.extents)
    return Elision(free(extents, (axes,), (axes,), tileable=tileable), tuple(operands), sides)


def _common_factors(relabel: Relabel, extents: tuple[Extent, ...]) -> list[_Piece] | None:
    """Each atom of the input's axes that is an atom of the result's. None where one has no known extent."""
    counterparts: dict[Atom, Atom] = {}
    for axis, group in enumerate(relabel.axes):
        stride = 1
        for index, atom in enumerate(reversed(group), start=1):
            extent = atom_extent(atom, extents)
            if index == len(group):
                counterparts[atom] = Atom(axis, stride)
            elif isinstance(extent, int):
                counterparts[atom] = Atom(axis, stride, stride * extent)
                stride *= extent
            else:
                return None
    atoms = sorted(counterparts, key=lambda atom: (atom.axis, -atom.inner))
    return [((atom,), (counterparts[atom],), atom_extent(atom, extents)) for atom in atoms]


def _reshaped_together(relabel: Relabel, read: tuple[Extent, ...], given: tuple[Extent, ...]) -> list[_Piece] | None:
    """Runs of axes of the input that become runs of axes of the result, in the same order. None where the view moves an
    axis, and where a run of several axes has an unknown extent."""
    pieces: list[tuple[list[int], list[int]]] = []
    for axis, group in enumerate(relabel.axes):
        axes = sorted({atom.axis for atom in group})
        if not axes:
            continue
        if pieces and pieces[-1][0][-1] >= axes[0]:
            pieces[-1][0].extend(a for a in axes if a > pieces[-1][0][-1])
            pieces[-1][1].append(axis)
        else:
            pieces.append((axes, [axis]))
    found: list[_Piece] = []
    for axes, results in pieces:
        atoms = [atom for axis in results for atom in relabel.axes[axis]]
        if atoms != sorted(atoms, key=lambda atom: (atom.axis, -atom.inner)):
            return None
        own = [read[axis] for axis in axes]
        if len(axes) == len(results) == 1:
            extent = own[0]
        elif all(isinstance(each, int) for each in (*own, *(given[axis] for axis in results))):
            extent = prod(each for each in own if isinstance(each, int))
        else:
            return None
        found.append((order_of(tuple(axes)), order_of(tuple(results)), extent))
    return found


def _is_all(view: View) -> bool:
    """Whether the view has all axes of the tensor that are longer than 1."""
    seen = {atom.axis for atom in chain.from_iterable(view.axes)}
    return all(extent == 1 or axis in seen for axis, extent in enumerate(view.base_extents))


def _own(order: MemoryFormat, pieces: tuple[MemoryFormat, ...], extents: tuple[Extent, ...]) -> MemoryFormat:
    """The order of the pieces as a memory format of the axes whose atoms they are."""
    found: list[Atom] = []
    for index, inner, outer in order:
        if len(pieces[index]) > 1:
            found += pieces[index]  # it is not tiled
            continue
        ((axis, low, high),) = pieces[index]
        found.append(Atom(axis, low * inner, low * outer or high))
    return with_units(normal_form(tuple(found), extents), extents)
