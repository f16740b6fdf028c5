"""The cost of operators in any order of axes, where onnxruntime's kernels do not take that order directly."""

from __future__ import annotations

from collections.abc import Set
from math import prod
from typing import TYPE_CHECKING

from relayout_backends.x86_nchwc.costs import multiplying_transposed
from relayout_backends.x86_nchwc.neighbours import dims_along, readers, views_between
from relayout_backends.x86_nchwc.quantized import order_cost_of_quantized
from relayout_backends.x86_nchwc.shapes import is_known, volume

if TYPE_CHECKING:
    import onnx_ir as ir

_SIZE = 4
"""The bytes of an element, assumed to be float32."""

_ONE_AXIS = 13
"""The opset from which Softmax works along one axis; before, all axes behind its own stay innermost."""


def order_cost(node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> int:
    """Bytes of memory traffic beyond the operator's best order; `traffic` is the part that is already known."""
    if node.op_type in ("LogSoftmax", "Softmax") and not is_rewritten:
        return traffic + _turned_inside(node, axes)
    if node.op_type == "MatMul":
        return traffic + _packing(node, is_turned=is_rewritten)
    return traffic + order_cost_of_quantized(node, axes)


def _turned_inside(node: ir.Node, axes: tuple[int, ...]) -> int:
    """A Softmax along an axis that is not innermost: its kernel transposes the data, and its result back."""
    result = node.outputs[0]
    if result.shape is None or node.graph is None or node.graph.opset_imports.get("", _ONE_AXIS) < _ONE_AXIS:
        return 0
    working = node.attributes.get_int("axis", -1) % len(result.shape)
    behind = axes[len(axes) - axes[::-1].index(working) :] if working in axes else ()
    innermost = all(result.shape[axis] == 1 for axis in behind)
    return 0 if innermost else 4 * _SIZE * volume(result, range(len(result.shape)))


def _packing(node: ir.Node, *, is_turned: bool) -> int:
    """A product whose left operand is constant, as in the product of the transposes (`is_turned`) of one with a
    constant right operand: it is packed anew in each run, and a bias is added on its own."""
    left, right, result = node.inputs[0], node.inputs[1], node.outputs[0]
    packed = right if is_turned else left
    if not is_known(packed) or left is None or left.shape is None or result.shape is None:
        return 0
    moved = volume(result, range(len(result.shape)))
    depth = volume(left, [len(left.shape) - 1]) if len(left.shape) > 1 else 1
    along = -1 if is_turned else -2
    return multiplying_transposed(moved * depth) + (2 * _SIZE * moved if _has_bias(result, along) else 0)


def _has_bias(result: ir.Value, along: int) -> bool:
    """Whether the only reader of a product is an Add of a constant vector along this axis: onnxruntime fuses the two
    into a Gemm where it is the last one. Views between are those of a conversion, or go with one."""
    (reader, *others) = readers(result) or [None]
    if reader is None or others or reader.op_type != "Add" or result.shape is None:
        return False
    found = next((views for each in reader.inputs if (views := views_between(result, each)) is not None), [])
    dims, extent = dims_along(result, along, found), result.shape[along]
    # Shapes first: to know whether the other operand is constant can take a walk through the whole graph.
    return dims is not None and sum(_is_vector(each, extent, dims) and is_known(each) for each in reader.inputs) == 1


def _is_vector(value: ir.Value | None, extent: int | ir.SymbolicDim, dims: Set[int]) -> bool:
    """Whether a value has this many elements, along these dimensions alone."""
    shape = value.shape if value is not None else None
    if shape is None or len(shape) == 0 or not shape.is_static() or extent != prod(shape.numpy()):
        return False
    return all(shape[place] == 1 or place in dims for place in range(-len(shape), 0))
