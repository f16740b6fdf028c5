"""What a caller says of inputs and outputs: names, with commas between those that are tied, and a layout or `any`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from relayout.backend.interface import TensorType, element_size
from relayout.candidates.messages import contradiction
from relayout.candidates.tensors import Operand
from relayout.errors import UsageError
from relayout.layout.binding import bind, fill, is_tiled, names_for
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Extent, MemoryFormat, is_padded, order_of
from relayout.model.graph_json.codec import BOUNDARY_LAYOUT_KEY

__all__ = ["ANY", "boundary_layouts", "is_cut", "is_wildcard", "misfit", "order_named", "tied_names"]

ANY = "any"


def is_wildcard(wanted: str) -> bool:
    """Whether the solver chooses: `any`, or Glow's ANY_LAYOUT, a star or one for each dimension."""
    return wanted == ANY or (wanted.strip("* \t") == "" and "*" in wanted)


def tied_names(key: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names of an option: a name that the graph has is one, whatever is in it; else commas part them.

    >>> tied_names("state,new_state", ["state", "new_state"]), tied_names("a,b", ["a,b"])
    (('state', 'new_state'), ('a,b',))
    """
    return (key,) if key in set(known) else tuple(key.split(","))


def boundary_layouts(
    graph: ir.Graph, input_layouts: Mapping[str, str] | None, output_layouts: Mapping[str, str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The layouts of the inputs and of the outputs: the caller's, and for those that no option names the ones that the
    graph declares (graph JSON's `layout`)."""
    options = dict(input_layouts or {}), dict(output_layouts or {})
    known = [value.name or "" for value in (*graph.inputs, *graph.outputs)]
    named = {name for key in (*options[0], *options[1]) for name in tied_names(key, known)}
    found = []
    for values, layouts in zip((graph.inputs, graph.outputs), options, strict=True):
        declared = {v.name: v.metadata_props.get(BOUNDARY_LAYOUT_KEY) for v in values if v.name and v.name not in named}
        found.append({name: layout for name, layout in declared.items() if layout} | layouts)
    return found[0], found[1]


def order_named(operand: Operand, letters: str | None, wanted: str, where: str, *, pads: bool) -> MemoryFormat:
    """The operand's axes in the order that the layout says, by these letters; stars stand for those that are left."""
    layout, rank = Layout.parse(wanted), len(operand.view.axes)
    names = names_for(layout, letters, rank)
    if is_tiled(layout):
        extents = operand.view.extents
        order = bind(layout, names, extents, 1, pads=pads) if names is not None else None
        if order is None or not is_cut(order, extents, pads=pads):
            raise misfit(letters, wanted, where)
        return order
    filled = fill(layout.names, names) if names is not None else None
    if names is None or filled is None:
        raise misfit(letters, wanted, where)
    axes = tuple(names.index(name) for name in filled)
    tensor = TensorType(element_size(operand.tensor.base), tuple(operand.view.extents[axis] for axis in axes))
    factors = tensor.stride_factors()
    if any(factors[i] % layout.alignment(i) for i in range(rank)):
        raise contradiction(
            "no conversion provides alignment",
            [f"{where}: requires {layout}"],
            [f"it were {layout.names} ({where}={layout.names})"],
        )
    return order_of(axes)


def misfit(letters: str | None, wanted: str, where: str) -> UsageError:
    """The error for a layout that does not fit what it was asked for."""
    return UsageError(
        "the layout does not fit the tensor",
        where=where,
        expected=f"the letters of {letters} in any order" if letters else "a tensor whose axes have names",
        found=wanted,
        hint="the letters are those of the operators that use the tensor; `any` lets the solver choose",
    )


def is_cut(order: MemoryFormat, extents: tuple[Extent, ...], *, pads: bool) -> bool:
    """Whether axes are cut, in a way that the graph's caller can do and undo: by known extents, and padding only what
    is fed."""
    if all(atom.is_whole for atom in order) or (is_padded(order, extents) and not pads):
        return False
    return sum(not isinstance(extent, int) for extent in extents) <= 1
