"""onnxruntime's quantized operators on NHWC data: the same operators with `channels_last`; kernels stay as they are.

Pools and convolutions of the domain com.microsoft take either order by themselves, as the operator table knows; ONNX's
QLinearConv is written as the one of that domain. With channels first, the kernels transpose their data to channels last
and their result back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relayout.backend import Implementation, Writing
from relayout.layout.layout import Layout
from relayout_backends.x86_nchwc.convolution import ATTRIBUTES
from relayout_backends.x86_nchwc.shapes import attributes, volume

if TYPE_CHECKING:
    import onnx_ir as ir

_DOMAIN = "com.microsoft"
_IN_EITHER_ORDER = ("QLinearAveragePool", "QLinearConv", "QLinearGlobalAveragePool")
_ATTRIBUTES = (*ATTRIBUTES, "group")


def order_cost_of_quantized(node: ir.Node, axes: tuple[int, ...]) -> int:
    """The cost of onnxruntime's quantized pool or convolution with its result's axes in this order; 0 for any other
    operator."""
    data, result = node.inputs[0], node.outputs[0]
    if node.domain != _DOMAIN or node.op_type not in _IN_EITHER_ORDER or data is None or data.shape is None:
        return 0
    rank = len(data.shape)
    is_last = node.attributes.get_int("channels_last", 0) == 1
    last = tuple(range(rank)) if is_last else (0, *range(2, rank), 1)
    return 0 if axes == last else _inner_transposes(data, result)


def quantized(node: ir.Node, plain: Implementation) -> Iterator[Implementation]:
    """Yield `plain` and the implementation with the channels last, of ONNX's QLinearConv."""
    data, result = node.inputs[0], node.outputs[0]
    if data is None or data.shape is None or result.shape is None or len(data.shape) != 4:
        yield plain
        return
    yield Implementation(plain.inputs, plain.results, plain.cost + _inner_transposes(data, result))
    last = Layout.parse("NHWC")
    yield Implementation((last, *plain.inputs[1:]), (last,), rewrite=_channels_last)


def _channels_last(writing: Writing) -> None:
    node = writing.node
    operands = [writing.read(i) if value is not None else None for i, value in enumerate(node.inputs)]
    chosen = {**attributes(node, *_ATTRIBUTES), "channels_last": 1}
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit(node.op_type, operands, chosen, shape=shape, domain=_DOMAIN))


def _inner_transposes(data: ir.Value, result: ir.Value) -> int:
    """The bytes that transposing the data and the result moves."""
    return 2 * sum(volume(value, range(len(value.shape or ()))) for value in (data, result))
