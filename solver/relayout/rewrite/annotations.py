"""What the legal model says of how its values lie: in the metadata of each value that does not lie as in the source."""

from __future__ import annotations

import onnx_ir as ir

from relayout.choices import in_source
from relayout.layout import Layout
from relayout.memory_format import Atom
from relayout.paths import Dims
from relayout.rules import Axes

__all__ = ["annotate", "noted_order"]

ORDER_KEY = "relayout.order"
ATOMS_KEY = "relayout.atoms"
"""The same where axes are cut: dimensions with commas between, each the atoms that make it up with `+` between, an atom
as axis:inner:outer."""
LAYOUT_KEY = "relayout.layout"


def annotate(value: ir.Value, own: Dims, earlier: Axes, layout: Layout | None) -> None:
    """Say that `value` has these dimensions of its source's axes. `earlier` is the order that the source's value was
    said to have already: the two are one after the other."""
    for key in (ORDER_KEY, ATOMS_KEY, LAYOUT_KEY):
        value.metadata_props.pop(key, None)
    laid = tuple(tuple(Atom(earlier[a.axis], a.inner, a.outer) for a in group) for group in own)
    if laid == in_source(len(earlier)):
        return
    if all(len(group) == 1 and group[0].is_whole for group in laid):
        value.metadata_props[ORDER_KEY] = ",".join(str(group[0].axis) for group in laid)
    else:
        value.metadata_props[ATOMS_KEY] = ",".join("+".join(map(_text, group)) for group in laid)
    if layout is not None and layout.rank == len(own):
        value.metadata_props[LAYOUT_KEY] = str(layout)


def noted_order(value: ir.Value, rank: int) -> Axes | None:
    """The order that an earlier run noted; None where there is none, or what is there is none of ours."""
    axes = value.metadata_props.get(ORDER_KEY, "").split(",")
    order = tuple(int(axis) for axis in axes if axis.isdecimal())
    return order if sorted(order) == list(range(rank)) and len(axes) == rank else None


def _text(atom: Atom) -> str:
    return str(atom.axis) if atom.is_whole else f"{atom.axis}:{atom.inner}:{atom.outer}"
