"""The price of onnxruntime's own operators that a model has already, such as those that an earlier run has written.

Each costs what it cost when it was chosen: a convolution of padded channels and a product that packs a transposed
operand what they take beyond the cheapest implementation, and a reorder the zeros that are written for it. The library
adds a reorder's own traffic. So a second run reports the same cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relayout.layout.metadata_keys import CHANNELS_KEY
from relayout_backends.x86_nchwc.blocks import DOMAIN, Blocks
from relayout_backends.x86_nchwc.convolution import blocked_penalty
from relayout_backends.x86_nchwc.costs import multiplying_transposed
from relayout_backends.x86_nchwc.editing import is_view
from relayout_backends.x86_nchwc.shapes import channels_of, is_float_image, volume

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["activation_cost", "price"]

_FLOAT = 4
_ELEMENTWISE = frozenset({"Add", "Clip", "Mul", "Relu", "Sigmoid", "Sub", "Tanh"})


def price(node: ir.Node, blocks: Callable[[], Blocks]) -> int:
    """The cost of a node of a legal model, in bytes of memory traffic; 0 for an operator that is not of that kind."""
    if node.domain == DOMAIN and node.op_type == "ReorderInput":
        return _zeros_before(node)
    if node.domain == DOMAIN and node.op_type == "Conv":
        return _convolution(node, blocks())
    if (node.domain, node.op_type) == ("com.microsoft", "FusedMatMul"):
        return _product(node)
    return 0


def _zeros_before(node: ir.Node) -> int:
    """The bytes that the Pad before a ReorderInput reads and writes, which fills its channels up; 0 where none does."""
    data, used = node.inputs[0], _noted(node)
    if data is None or data.shape is None or used is None:
        return 0
    filled = data.shape[3 if node.attributes.get_int("channels_last", 0) else 1]
    if not isinstance(filled, int) or filled <= used:
        return 0
    return _FLOAT * (volume(data, range(4)) // filled) * (used + filled)


def _convolution(node: ir.Node, blocks: Blocks) -> int:
    data, outputs = node.inputs[0], _noted(node)
    if data is None or outputs is None or not is_float_image(data) or not is_float_image(node.outputs[0]):
        return 0
    groups = node.attributes.get_int("group", 1)
    penalty = blocked_penalty(node, blocks, outputs, (_used_channels(data) or channels_of(data)) // groups)
    return penalty + (activation_cost(node, blocks.size) if "activation" in node.attributes else 0)


def activation_cost(convolution: ir.Node, size: int) -> int:
    """The cost of an activation in the blocks of this convolution: 1 if the order of its axes did not show that it is
    in blocks, as in padded ones of a single dim; see `order_cost`. A block has `size` channels."""
    channels, shape = _noted(convolution) or 0, convolution.outputs[0].shape
    is_point = shape is not None and len(shape) == 4 and shape[2] == shape[3] == 1
    return 1 if channels % size and (channels < size or is_point) else 0


def _used_channels(data: ir.Value) -> int | None:
    """The channels of a blocked value without padding, by the operators before it; None where these say nothing.

    Each value before it is visited once, without recursion: chains of operators may be long, and branch and join.
    """
    known: dict[ir.Value, int | None] = {}
    stack = [data]
    while stack:
        value = stack[-1]
        operands = _passed_on(value)
        waiting = [operand for operand in operands if operand not in known]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        producer, used = value.producer(), [known[operand] for operand in operands]
        if producer is not None and producer.domain == DOMAIN:
            known[value] = _noted(producer)
        elif producer is not None and producer.op_type == "Concat":
            known[value] = sum(part for part in used if part is not None) if None not in used else None
        else:
            known[value] = next((part for part in used if part is not None), None)
    return known[data]


def _passed_on(value: ir.Value) -> list[ir.Value]:
    """The operands whose channels are those of a blocked value: of an elementwise operator, a Concat or a view."""
    producer = value.producer()
    if producer is None or producer.domain == DOMAIN:
        return []
    if is_view(producer):
        return [operand for operand in producer.inputs[:1] if operand is not None]
    if producer.op_type not in _ELEMENTWISE | {"Concat"}:
        return []
    return [operand for operand in producer.inputs if operand is not None]


def _product(node: ir.Node) -> int:
    left, result = node.inputs[0], node.outputs[0]
    if left is None or left.shape is None or result.shape is None or not node.attributes.get_int("transA", 0):
        return 0
    depth = 0 if node.attributes.get_int("transBatchA", 0) else len(left.shape) - 2
    return multiplying_transposed(volume(result, range(len(result.shape))) * volume(left, [depth]))


def _noted(node: ir.Node) -> int | None:
    """The channels without padding of a blocked operator's result, as noted when it was written."""
    text = node.metadata_props.get(CHANNELS_KEY, "")
    return int(text) if text.isdecimal() else None
