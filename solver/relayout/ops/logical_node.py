"""The logical node: an operator as ONNX defines it, whatever the layout in which the model has it.

An operator of the domain `relayout`, such as a Conv on `NCHWc[tile:16]` data, computes what ONNX's Conv computes. A
backend is asked about that Conv: ONNX's domain, no layout attributes, and operands with the axes that ONNX gives them,
batch and channels first. `written_node` is the node of the model, and `own_layout` gives an operand's layout there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.errors import InputError
from relayout.layout.binding import is_tiled
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import (
    DATA,
    OWN_DOMAIN,
    has_roles,
    input_role,
    letters_of_role,
    own_layout,
    result_role,
    written_node,
)

if TYPE_CHECKING:
    import onnx_ir as ir


def node_name(node: ir.Node) -> str:
    """The name by which a node is known: its own, or else that of its first result; "" where both are left out."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def logical(node: ir.Node) -> ir.Node:
    """The logical node of `node`; itself where it is ONNX's already, or where a layout attribute is invalid."""
    if node.domain != OWN_DOMAIN or not has_roles(node):
        return node
    from relayout.ops.logical_view import logical_view

    try:
        return logical_view(node)
    except InputError:
        return node


def without_layouts(node: ir.Node) -> ir.Node:
    """The logical node as if its operands lay in ONNX's order; `node` itself where they do."""
    found = logical(written_node(node))
    if found is written_node(node):
        return node
    found.hides_layouts = True  # type: ignore[attr-defined]  # of a view, which is made at each call
    return found


def lies_as(node: ir.Node, n: int, *, is_result: bool = False) -> Layout | None:
    """The layout of an operand with named axes as the model has it, if that is not ONNX's order; else None."""
    if node.domain != OWN_DOMAIN or not has_roles(node):
        return None
    role = result_role(node, n) if is_result else input_role(node, n)
    letters = letters_of_role(node, role)
    if letters is None:
        return None
    layout = own_layout(node, role, len(letters), is_result=is_result)
    return None if layout.is_any or str(layout) == letters else layout


def is_packed(node: ir.Node) -> bool:
    """Whether an operand of `node`, an operator of the domain `relayout`, has tiled axes."""
    if node.domain != OWN_DOMAIN or not has_roles(node):
        return False
    try:
        layouts = [lies_as(node, n) for n in range(len(node.inputs))]
        layouts += [lies_as(node, n, is_result=True) for n in range(len(node.outputs))]
    except InputError:
        return False
    return any(layout is not None and is_tiled(layout) for layout in layouts)


def logical_order(node: ir.Node, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of the first result of `node` as it is written, as those of its logical node."""
    layout = lies_as(node, 0, is_result=True)
    letters = letters_of_role(node, DATA) if layout is not None else None
    if layout is None or letters is None or is_tiled(layout):
        return axes
    return tuple(letters.index(layout.names[axis]) for axis in axes)
