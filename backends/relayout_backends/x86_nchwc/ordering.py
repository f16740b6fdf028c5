"""The cost of operators in any order of axes, where onnxruntime's kernels do not take that order directly."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout_backends.x86_nchwc.absorbing import ACTIVATIONS
from relayout_backends.x86_nchwc.blocks import DOMAIN, Blocks
from relayout_backends.x86_nchwc.costs import multiplying_transposed
from relayout_backends.x86_nchwc.neighbours import maker, readers
from relayout_backends.x86_nchwc.present import activation_cost
from relayout_backends.x86_nchwc.quantized import pool_order_cost
from relayout_backends.x86_nchwc.shapes import constant, is_float_image, is_known, volume

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["order_cost"]

_SIZE = 4
"""The bytes of an element, assumed to be float32."""

_ONE_AXIS = 13
"""The opset from which Softmax works along one axis; before, all axes behind its own stay innermost."""


def order_cost(
    node: ir.Node, axes: tuple[int, ...], traffic: int, blocks: Callable[[], Blocks], *, is_rewritten: bool
) -> int:
    """Bytes of memory traffic beyond the operator's best order; `traffic` is the part that is already known."""
    if node.op_type in ("LogSoftmax", "Softmax") and not is_rewritten:
        return traffic + _turned_inside(node, axes)
    if node.op_type == "MatMul":
        return traffic + _packing(node, is_turned=is_rewritten)
    if node.op_type in ACTIVATIONS and len(set(axes)) == len(axes):
        return traffic + _beside_blocks(node, axes, blocks)
    return traffic + pool_order_cost(node, axes)


def _beside_blocks(node: ir.Node, axes: tuple[int, ...], blocks: Callable[[], Blocks]) -> int:
    """1 for an activation behind a convolution that may be blocked, where it is not known to be in blocks itself."""
    producer = maker(node.inputs[0])
    if producer is not None and producer.domain == DOMAIN and producer.op_type == "Conv":
        return activation_cost(producer, blocks().size)  # in a legal model it is in blocks
    return 1 if _follows_blocks(node) and not _is_in_blocks(node.outputs[0], axes, blocks()) else 0


def _is_in_blocks(value: ir.Value, axes: tuple[int, ...], blocks: Blocks) -> bool:
    """Whether a value with its axes in this order is in blocks: in one that has all channels, or in several of an image
    of one place."""
    shape = value.shape
    channels = shape[1] if shape is not None and len(shape) == 4 else None
    if shape is None or not isinstance(channels, int) or channels % blocks.size:
        return False
    order = [axis for axis in axes if shape[axis] != 1]
    if shape[2] == shape[3] == 1:
        return order == sorted(order)
    return channels == blocks.size and order == [axis for axis in (0, 2, 3, 1) if shape[axis] != 1]


def _follows_blocks(node: ir.Node) -> bool:
    """Whether an activation may follow a blocked convolution, which fuses it: on equal cost, it is blocked too."""
    producer = maker(node.inputs[0])
    if producer is not None and (producer.op_type == "ReorderOutput" or CONVERSION_KEY in producer.metadata_props):
        # In a legal model the activation that is not fused is behind a conversion from blocks.
        producer = maker(producer.inputs[0])
        if producer is None or _is_normalization(producer):
            return False
    elif producer is not None and producer.domain == DOMAIN:
        return False
    if producer is not None and producer.op_type == "BatchNormalization":
        producer = maker(producer.inputs[0])
    if producer is None or producer.op_type != "Conv":
        return False
    return is_float_image(producer.outputs[0]) and is_known(producer.inputs[1])


def _is_normalization(node: ir.Node) -> bool:
    """Whether a blocked Conv is a BatchNormalization: one multiplication for each element."""
    kernel = node.inputs[1] if len(node.inputs) > 1 else None
    return kernel is not None and kernel.shape is not None and tuple(kernel.shape[1:]) == (1, 1, 1)


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
    if constant(packed) is None or left is None or left.shape is None or result.shape is None:
        return 0
    moved = volume(result, range(len(result.shape)))
    depth = volume(left, [len(left.shape) - 1]) if len(left.shape) > 1 else 1
    along = -1 if is_turned else -2
    return multiplying_transposed(moved * depth) + (2 * _SIZE * moved if _has_bias(result, along) else 0)


def _has_bias(result: ir.Value, along: int) -> bool:
    """Whether the only reader of a product is an Add of a constant vector along this axis: onnxruntime fuses the two
    into a Gemm where it is the last one."""
    (reader, *others) = readers(result) or [None]
    if reader is None or others or reader.op_type != "Add":
        return False
    known = [value for value in reader.inputs if is_known(value)]
    shape = known[0].shape if len(known) == 1 and known[0] is not None else None
    if shape is None or result.shape is None or not shape.is_static() or len(result.shape) < -along:
        return False
    return len(shape) >= -along and shape[along] == result.shape[along] == prod(shape.numpy())
