"""Elision of operators that compute nothing: their result aliases their input.

SpaceToDepth is a Transpose between two Reshapes. As an operator it moves its data. When it is elided, nothing is moved:
its consumers read the aliased memory, or a conversion of it like of any other tensor. Both are alternatives of the
node. In the first its two tensors have the operator's formats; in the second one order of their common factors gives
both formats.
"""

from __future__ import annotations

from itertools import chain

from msgspec import Struct

from relayout.candidates.alternatives import FixedLowering, Port
from relayout.candidates.tensors import Operand
from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, atom_extent, normal_form, with_units
from relayout.layout.view import View
from relayout.ops import Axes, Free, Relabel, free

__all__ = ["Elision", "elision_of"]


class Elision(Struct, frozen=True):
    """The common factors of the axes on both sides. `rule` allows them in any order; `operands` maps them to the two
    tensors. `sides` has, for the input and for the result, the atom of each factor and the extents."""

    rule: Free
    operands: tuple[tuple[Operand, Axes], ...]
    sides: tuple[tuple[MemoryFormat, tuple[Extent, ...]], ...]

    def lowering(self, order: MemoryFormat) -> FixedLowering:
        """The lowering of the elided node when the factors are in this order."""
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
    """The elision of a node whose `result` is a view of `source`. None where the two tensors have no common factors,
    and where the extent 1 of an axis is only declared."""
    before, after = source.operand.view, result.operand.view
    counterparts: dict[Atom, Atom] = {}
    for axis, group in enumerate(relabel.axes):
        stride = 1
        for index, atom in enumerate(reversed(group), start=1):
            extent = atom_extent(atom, before.extents)
            if index == len(group):
                counterparts[atom] = Atom(axis, stride)
            elif isinstance(extent, int):
                counterparts[atom] = Atom(axis, stride, stride * extent)
                stride *= extent
            else:
                return None
    atoms = tuple(sorted(counterparts, key=lambda atom: (atom.axis, -atom.inner)))
    extents = tuple(atom_extent(atom, before.extents) for atom in atoms)
    given = tuple(counterparts[atom] for atom in atoms)
    views = before.then([(a,) for a in atoms], extents), after.then([(a,) for a in given], extents)
    axes = tuple(range(len(atoms)))
    operands: list[tuple[Operand, Axes]] = []
    for port, view in zip((source, result), views, strict=True):
        if view is None or not _is_all(view):
            return None
        operands.append((Operand(port.operand.tensor, view, port.operand.value), axes))
    sides = (atoms, before.extents), (given, after.extents)
    return Elision(free(extents, (axes,), (axes,), tileable=axes), tuple(operands), sides)


def _is_all(view: View) -> bool:
    """Whether the view has all axes of the tensor that are longer than 1."""
    seen = {atom.axis for atom in chain.from_iterable(view.axes)}
    return all(extent == 1 or axis in seen for axis, extent in enumerate(view.base_extents))


def _own(order: MemoryFormat, atoms: tuple[Atom, ...], extents: tuple[Extent, ...]) -> MemoryFormat:
    """The order of the factors as a memory format of the axes that they factor."""
    found = []
    for index, inner, outer in order:
        axis, low, high = atoms[index]
        found.append(Atom(axis, low * inner, low * outer or high))
    return with_units(normal_form(tuple(found), extents), extents)
