"""Operators that compute nothing, left out: their result is the memory that they read, seen with other axes.

SpaceToDepth is a Transpose between two Reshapes. As an operator it moves its data; left out it moves nothing, and its
readers take what lies there, or have it converted like any other tensor. Both are alternatives of its node: in the one
its two tensors lie as the operator reads and gives them, in the other an order of their common pieces lays out both.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from relayout.candidates.alternatives import FixedLowering, Port
from relayout.candidates.tensors import Operand
from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, View, atom_extent, normal_form, with_units
from relayout.ops import Axes, Free, Relabel, free

__all__ = ["Elision", "elision_of"]


@dataclass(frozen=True, slots=True)
class Elision:
    """The pieces of which the axes on both sides are made up. `rule` says that they go anywhere, `operands` how they
    lie in the two tensors; `sides` has, for what is read and for what is given, the atom of its axes
    that each piece is, and its extents."""

    rule: Free
    operands: tuple[tuple[Operand, Axes], ...]
    sides: tuple[tuple[MemoryFormat, tuple[Extent, ...]], ...]

    def form(self, order: MemoryFormat) -> FixedLowering:
        """How the node is left out when the pieces lie in this order."""
        read, given = (one_each(_own(order, atoms, extents)) for atoms, extents in self.sides)
        return FixedLowering((read,), (given,), left_out=True)

    def carried(self, dims: Dims, *, back: bool = False) -> Dims | None:
        """Dimensions of the tensor that is read, in atoms of the one that is given, or `back`; None where these pieces
        are no pieces of them."""
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
    """The pieces of a node that only relabels `source` as `result`; None where a tensor behind one is cut otherwise, or
    has an axis of which it is only said that it is 1."""
    before, after = source.operand.view, result.operand.view
    twins: dict[Atom, Atom] = {}
    for axis, group in enumerate(relabel.axes):
        stride = 1
        for place, atom in enumerate(reversed(group), start=1):
            extent = atom_extent(atom, before.extents)
            if place == len(group):
                twins[atom] = Atom(axis, stride)
            elif isinstance(extent, int):
                twins[atom] = Atom(axis, stride, stride * extent)
                stride *= extent
            else:
                return None
    atoms = tuple(sorted(twins, key=lambda atom: (atom.axis, -atom.inner)))
    extents = tuple(atom_extent(atom, before.extents) for atom in atoms)
    given = tuple(twins[atom] for atom in atoms)
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
    """Whether the view's axes together are all axes of the tensor but those of extent 1."""
    seen = {atom.axis for atom in chain.from_iterable(view.axes)}
    return all(extent == 1 or axis in seen for axis, extent in enumerate(view.base_extents))


def _own(order: MemoryFormat, atoms: tuple[Atom, ...], extents: tuple[Extent, ...]) -> MemoryFormat:
    """The order of the pieces as one of the axes that they are pieces of, all of them."""
    found = []
    for place, inner, outer in order:
        axis, low, high = atoms[place]
        found.append(Atom(axis, low * inner, low * outer or high))
    return with_units(normal_form(tuple(found), extents), extents)
