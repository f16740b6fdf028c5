"""Boundary options: names of inputs and outputs, coupled by commas, and a layout or `any`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from relayout.backend.interface import TensorType, element_size
from relayout.candidates.messages import contradiction
from relayout.candidates.tensors import Operand
from relayout.errors import UsageError
from relayout.layout.binding import bind, fill, is_tiled, names_for, unbound
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Extent, MemoryFormat, has_open_stride, is_padded, order_of
from relayout.layout.metadata_keys import BOUNDARY_LAYOUT_KEY

ANY = "any"


def is_wildcard(wanted: str) -> bool:
    """Whether the solver chooses: `any`, or Glow's ANY_LAYOUT, a star or one for each dimension."""
    return wanted == ANY or (wanted.strip("* \t") == "" and "*" in wanted)


def coupled_names(key: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names of an option: the whole text if the graph has that name, else its parts between commas.

    >>> coupled_names("state,new_state", ["state", "new_state"]), coupled_names("a,b", ["a,b"])
    (('state', 'new_state'), ('a,b',))
    """
    return (key,) if key in set(known) else tuple(key.split(","))


def boundary_layouts(
    graph: ir.Graph, input_layouts: Mapping[str, str] | None, output_layouts: Mapping[str, str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The layouts of the inputs and of the outputs: the caller's, else the graph's own (graph JSON's `layout`)."""
    options = dict(input_layouts or {}), dict(output_layouts or {})
    known = [value.name or "" for value in (*graph.inputs, *graph.outputs)]
    named = {name for key in (*options[0], *options[1]) for name in coupled_names(key, known)}
    found = []
    for values, layouts in zip((graph.inputs, graph.outputs), options, strict=True):
        declared = {v.name: v.metadata_props.get(BOUNDARY_LAYOUT_KEY) for v in values if v.name and v.name not in named}
        found.append({name: layout for name, layout in declared.items() if layout} | layouts)
    return found[0], found[1]


def order_named(operand: Operand, axis_names: str | None, wanted: str, where: str, *, pads: bool) -> MemoryFormat:
    """The operand's axes in the layout's order, by these names; a `*` stands for a remaining axis."""
    layout, rank = Layout.parse(wanted), len(operand.view.axes)
    names = names_for(layout, axis_names, "".join(map(str, range(rank))))
    if is_tiled(layout):
        extents = operand.view.extents
        order = bind(layout, names, extents, 1, pads=pads) if names is not None else None
        if order is None or not is_tiled_layout(order, extents, pads=pads):
            why = (unbound(layout, names, extents, 1, pads=pads) or "").partition(";")[0] if names is not None else ""
            raise misfit(axis_names, wanted, where, why)
        return order
    filled = fill(layout.names, names) if names is not None else None
    if names is None or filled is None:
        raise misfit(axis_names, wanted, where)
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


def misfit(axis_names: str | None, wanted: str, where: str, why: str = "") -> UsageError:
    """The error for a layout that does not fit its tensor. `why`: the cause, where the names alone do not show it."""
    return UsageError(
        "the layout does not fit the tensor",
        where=where,
        expected=f"the axis names {axis_names} in any order" if axis_names else "a tensor whose axes have names",
        found=f"{wanted}: {why}" if why else wanted,
        hint="the operators that use the tensor give the axis names; `any` lets the solver choose",
    )


def is_tiled_layout(order: MemoryFormat, extents: tuple[Extent, ...], *, pads: bool) -> bool:
    """Whether the graph's caller can convert this tiled layout: known extents, padding for inputs only, and cuts at
    numbers, which alone can be told."""
    if (
        any(map(has_open_stride, order))
        or all(atom.is_whole for atom in order)
        or (is_padded(order, extents) and not pads)
    ):
        return False
    return sum(not isinstance(extent, int) for extent in extents) <= 1
