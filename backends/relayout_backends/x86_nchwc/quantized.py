"""onnxruntime's quantized operators on NHWC data: the same operators with `channels_last`; kernels stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relayout.backend import Implementation, Writing
from relayout.layout.layout import Layout
from relayout_backends.x86_nchwc.convolution import ATTRIBUTES
from relayout_backends.x86_nchwc.shapes import attributes, volume

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["QUANTIZED", "quantized"]

QUANTIZED = frozenset({"QLinearAveragePool", "QLinearConv", "QLinearGlobalAveragePool"})

_DOMAIN = "com.microsoft"
_ATTRIBUTES = (*ATTRIBUTES, "ceil_mode", "channels_last", "count_include_pad", "group")


def quantized(node: ir.Node, plain: Implementation) -> Iterator[Implementation]:
    """Yield `plain`, and the implementation with the channels last."""
    data, result = node.inputs[0], node.outputs[0]
    if data is None or data.shape is None or result.shape is None or len(data.shape) != 4:
        yield plain
        return
    if node.attributes.get_int("channels_last", 0):
        yield plain
        return
    # Channels first, the operator itself transposes its data to channels last and its result back.
    turned = 2 * (volume(data, range(4)) + volume(result, range(4)))
    yield Implementation(plain.inputs, plain.results, plain.cost + turned)
    last = Layout.parse("NHWC")
    yield Implementation((last, *plain.inputs[1:]), (last,), rewrite=_channels_last)


def _channels_last(writing: Writing) -> None:
    node = writing.node
    operands = [writing.read(i) if value is not None else None for i, value in enumerate(node.inputs)]
    chosen = {**attributes(node, *_ATTRIBUTES), "channels_last": 1}
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit(node.op_type, operands, chosen, shape=shape, domain=_DOMAIN))
