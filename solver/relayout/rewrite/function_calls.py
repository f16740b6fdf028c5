"""Writing a node as an operator in a layout that ONNX has no word for, and as ONNX's own again."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.candidates.alternatives import NodeAlternatives
from relayout.layout.binding import layout_of
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Atom, Extent
from relayout.model.layout_functions import DOMAIN, LAYOUT_ATTRIBUTES, Signature, Turn, ensure_function
from relayout.ops import extents_of
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.operand_dims import flat

__all__ = ["operand_extents", "relayout", "standard", "turned", "word"]


def relayout(
    context: RewriteContext,
    node: ir.Node,
    layouts: tuple[tuple[str, str], ...],
    inputs: tuple[Turn | None, ...],
    results: tuple[Turn | None, ...],
) -> None:
    # What nobody reads is given as in the source: a runtime may have another kernel for fewer results.
    named = max((i for i, value in enumerate(node.outputs) if value.name), default=0) + 1
    turned = [turn.outward() if turn is not None else None for turn in results[:named]]
    signature = Signature(node.op_type, layouts, inputs, tuple(turned))
    standard(node)
    node.resize_outputs(len(signature.results))
    node.domain = DOMAIN
    node.overload = ensure_function(context.model, signature)
    for name, layout in layouts:
        node.attributes[name] = ir.AttrString(name, layout)


def standard(node: ir.Node) -> None:
    """ONNX's own operator, which has no layouts to say."""
    node.domain, node.overload = "", ""
    for name in LAYOUT_ATTRIBUTES:
        node.attributes.pop(name, None)


def word(dims: Dims, letters: str, extents: tuple[Extent, ...] | None) -> str | None:
    """The layout of these dimensions. Factors that change places within one dimension are the axis itself."""
    groups = [group if len(group) == 1 else (Atom(group[0].axis),) for group in dims]
    layout = layout_of(flat(tuple(groups)), letters, extents)
    return str(layout) if layout is not None else None


def operand_extents(choice: NodeAlternatives) -> dict[tuple[bool, int], tuple[Extent, ...]]:
    """Each operand's extents as in the source, constants' too."""
    assert choice.node is not None
    found: dict[tuple[bool, int], tuple[Extent, ...]] = {}
    for index, value in enumerate(choice.node.inputs):
        extents = extents_of(value) if value is not None else None
        if extents is not None:
            found[False, index] = extents
    for port in choice.ports:
        found[port.is_result, port.index] = port.operand.view.extents
    return found


def turned(dims: Dims, places: Sequence[int], extents: tuple[Extent, ...] | None) -> Turn:
    """From an operand that has `dims` to ONNX's order, where axis i of the source is axis `places[i]`."""
    lies = tuple(
        (Atom(places[group[0].axis]),)
        if len(group) > 1
        else tuple(Atom(places[atom.axis], atom.inner, atom.outer) for atom in group)
        for group in dims
    )
    native: list[Extent] = [None] * len(places)
    for axis, place in enumerate(places):
        native[place] = extents[axis] if extents is not None else None
    return Turn.inward(lies, tuple(native))
