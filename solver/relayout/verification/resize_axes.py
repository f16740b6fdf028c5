"""The axes of a Resize: they have no names, but the extents of rows and columns change."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.ops.node_reader import constant_tensor
from relayout.verification.memory_format import memory_format_of, whole
from relayout.verification.operator_facts import AxisNames, standard_names

_RESIZES = ("Resize", "Upsample")

Extents = tuple[int | ir.SymbolicDim, ...]


def names_by_extents(node: ir.Node) -> AxisNames | None:
    """The names that a Resize gives the axes of its data, by those of the source that it resizes; None for any other
    operator, and where its result has no annotated order of whole axes.

    The annotation of the result counts the axes of the Resize. That of the operand counts those of its producer, which
    a Transpose of the source may have exchanged. For the same reason no other operator has to agree with the names.
    """
    before, after = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.op_type not in _RESIZES or node.domain != "" or before is None or before.shape is None:
        return None
    rank = len(before.shape)
    order = (memory_format_of(after) or whole(range(rank))).permutation
    if order is None or len(order) != rank or rank not in (3, 4, 5):
        return None
    changes = _changes(node, rank)
    names = _names([changes[order.index(axis)] for axis in range(rank)])
    return tuple(names[axis] for axis in order)


def may_be_cut(node: ir.Node, layout: Layout) -> bool:
    """Whether the tiles of a layout divide the axes that a Resize had in the source, as far as the annotated orders of
    its operands tell: in another order it would seem to have other axes."""
    before, after = node.inputs[0], node.outputs[0]
    if before is None or before.shape is None or after.shape is None or len(before.shape) != len(after.shape):
        return True
    noted = [memory_format_of(value) for value in (before, after)]
    orders = [format_.permutation for format_ in noted if format_ is not None]
    shapes = tuple(before.shape), tuple(after.shape)
    return all(order is None or len(order) != len(shapes[0]) or _divide(layout, shapes, order) for order in orders)


def _divide(layout: Layout, shapes: tuple[Extents, Extents], order: tuple[int, ...]) -> bool:
    """Whether the tiles divide the axes of both shapes, which are in `order`, after these are permuted back."""
    first, last = ([shape[order.index(axis)] for axis in range(len(order))] for shape in shapes)
    names = _names([one != other for one, other in zip(first, last, strict=True)])
    outer = {layout.outer(i): layout.tile(i) for i in range(layout.rank)}
    tiles = {layout.names[place]: tile for place, tile in outer.items() if place is not None}
    return all(
        isinstance(extent, int) and extent % tile == 0
        for extents in (first, last)
        for name, extent in zip(names, extents, strict=True)
        if (tile := tiles.get(name or "")) is not None
    )


def _names(changes: Sequence[bool]) -> AxisNames:
    names = standard_names(len(changes))
    if len(changes) > 2 and changes[1] and not changes[0] and not changes[-1]:
        return (names[0], *names[2:], names[1])
    return names


def _changes(node: ir.Node, rank: int) -> list[bool]:
    """For each axis whether it is resized, by its extents where both are known, else by the scales."""
    before, after = node.inputs[0], node.outputs[0]
    if before is None or before.shape is None or after.shape is None or len(after.shape) != rank:
        return [False] * rank
    scales = _scales(node, rank)
    return [
        one != other if isinstance(one, int) and isinstance(other, int) else scale != 1
        for one, other, scale in zip(before.shape, after.shape, scales, strict=True)
    ]


def _scales(node: ir.Node, rank: int) -> list[float]:
    """The constant scale of each axis, 1 where none is given."""
    found = [1.0] * rank
    axes = node.attributes.get_ints("axes", tuple(range(rank))) or ()
    given: list[float] = []
    if "scales" in node.attributes:
        given = list(node.attributes["scales"].as_floats())
    for operand in node.inputs[1:3]:
        tensor = constant_tensor(operand) if operand is not None else None
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == len(axes):
            try:
                given = tensor.numpy().reshape(-1).tolist()
            except Exception:  # a constant whose data is absent, or in a missing file
                return found
    for axis, scale in zip(axes, given, strict=False):
        found[axis % rank] = scale
    return found
