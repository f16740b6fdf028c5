"""What a Resize takes the axes of its operand for: it gives them no names, but it changes rows and columns."""

from __future__ import annotations

import onnx_ir as ir

from relayout.verify.operators import AxisNames, standard_names

__all__ = ["placed_names"]

_RESIZES = ("Resize", "Upsample")


def placed_names(node: ir.Node, rank: int) -> AxisNames:
    """The names of the data axes of an operator that is told things of them by their places in ONNX's order.

    That order is N, C, then what is spatial, but for a Resize of a picture whose second axis it changes and whose last
    one it leaves: of that one the channels come last.
    """
    names = standard_names(rank)
    if node.op_type in _RESIZES and node.domain in ("", "ai.onnx") and rank in (3, 4, 5):
        changes = _changes(node, rank)
        if changes[1] and not changes[0] and not changes[-1]:
            return (names[0], *names[2:], names[1])
    return names


def _changes(node: ir.Node, rank: int) -> list[bool]:
    """For each axis whether it is resized: known extents tell, of the others the scales."""
    before, after = node.inputs[0], node.outputs[0]
    if before is None or before.shape is None or after.shape is None or len(after.shape) != rank:
        return [False] * rank
    scales = _scales(node, rank)
    return [
        one != other if isinstance(one, int) else scale != 1
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
        tensor = ir.convenience.get_const_tensor(operand) if operand is not None else None
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == len(axes):
            try:
                given = tensor.numpy().reshape(-1).tolist()
            except Exception:  # a constant whose data is absent, or in a file that is gone
                return found
    for axis, scale in zip(axes, given, strict=False):
        found[axis % rank] = scale
    return found
