"""What the legal model says of how its values lie: in the metadata of each value that does not lie as in the source."""

from __future__ import annotations

import re
from itertools import chain
from math import prod

import onnx_ir as ir

from relayout.candidates.alternatives import in_source
from relayout.layout.conversion import Dims
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom, Extent, MemoryFormat
from relayout.layout.view import View
from relayout.model.metadata import LAYOUT_KEY

__all__ = ["annotate", "noted_view"]

ORDER_KEY = "relayout.order"
ATOMS_KEY = "relayout.atoms"
"""The same where axes are cut: dimensions with commas between, each the atoms that make it up with `+` between, an atom
as axis:inner:outer."""

_ATOM = re.compile(r"(\d+)(?::(\d+):(\d+))?", re.ASCII)


def annotate(value: ir.Value, own: Dims, rank: int, earlier: View | None, layout: Layout | None) -> None:
    """Say that `value` has these dimensions of its source's axes, of which there are `rank`. `earlier` is what the
    source's value was said to be of a source of its own: the two are one after the other."""
    for key in (ORDER_KEY, ATOMS_KEY, LAYOUT_KEY):
        value.metadata_props.pop(key, None)
    laid = tuple(_of_earlier(group, earlier) for group in own) if earlier is not None else own
    groups = [group for group in laid if group is not None]
    if len(groups) < len(laid):
        return
    if laid == in_source(rank if earlier is None else len(earlier.base_extents)):
        if layout is None or not any(layout.boxes(i) for i in range(layout.rank)):
            return
    elif all(len(group) == 1 and group[0].is_whole for group in groups):
        value.metadata_props[ORDER_KEY] = ",".join(str(group[0].axis) for group in groups)
    else:
        # A tile for all of an axis has an outer piece of extent 1 beside it, which has no place.
        placed = [[atom for atom in group if atom.inner != atom.outer] for group in groups]
        value.metadata_props[ATOMS_KEY] = ",".join("+".join(map(_text, group)) for group in placed)
    if layout is not None and layout.rank == len(own):
        value.metadata_props[LAYOUT_KEY] = str(layout)


def noted_view(value: ir.Value, extents: tuple[Extent, ...]) -> View | None:
    """What an earlier run noted of the value, as a view of the source that it had; None where there is nothing, what is
    there is none of ours, or the source's extents do not follow from the value's."""
    groups = _noted(value.metadata_props.get(ORDER_KEY) or value.metadata_props.get(ATOMS_KEY, ""))
    if groups is None or len(groups) != len(extents):
        return None
    atoms = sorted(chain.from_iterable(groups))
    ends: dict[int, Extent] = {}
    reached = dict.fromkeys(range(len({atom.axis for atom in atoms})), 1)
    for atom in atoms:
        if reached.get(atom.axis) != atom.inner:
            return None
        reached[atom.axis] = atom.outer
    if any(reached.values()):
        return None
    for group, extent in zip(groups, extents, strict=True):
        closed = prod(atom.outer // atom.inner for atom in group if atom.outer)
        for atom in group:
            if group == (atom,) and atom.is_whole:
                ends[atom.axis] = extent
            elif not atom.outer:
                # What is left of a dimension beside the atoms whose ends are known, if that is one atom.
                alone = isinstance(extent, int) and sum(not other.outer for other in group) == 1
                ends[atom.axis] = extent // closed * atom.inner if alone else None  # type: ignore[operator]
    return View.of(groups, extents, tuple(ends[axis] for axis in range(len(ends))))


def _noted(text: str) -> Dims | None:
    """Dimensions as they are written down."""
    found: list[MemoryFormat] = []
    for part in text.split(","):
        matches = [_ATOM.fullmatch(atom) for atom in part.split("+")] if part else []
        atoms = [Atom(*(int(number) for number in match.groups() if number is not None)) for match in matches if match]
        if len(atoms) != len(matches) or any(atom.inner < 1 for atom in atoms):
            return None
        found.append(tuple(atoms))
    return tuple(found) if text else None


def _of_earlier(group: MemoryFormat, earlier: View) -> MemoryFormat | None:
    """A group of atoms of a value as one of the source that the value had; None where its atoms do not nest."""
    if len(group) == 1 and group[0].is_whole:
        return earlier.axes[group[0].axis]
    units = [earlier.axes[atom.axis] for atom in group if earlier.extents[atom.axis] == 1]
    rest = earlier.to_base(tuple(atom for atom in group if earlier.extents[atom.axis] != 1))
    return (*rest, *chain.from_iterable(units)) if rest is not None else None


def _text(atom: Atom) -> str:
    return str(atom.axis) if atom.is_whole else f"{atom.axis}:{atom.inner}:{atom.outer}"
