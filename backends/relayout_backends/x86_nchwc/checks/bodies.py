"""ONNX operators that compute what onnxruntime's own operators compute, from the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from relayout.backend import OperatorBody
from relayout.layout.metadata_keys import BLOCK_KEY
from relayout_backends.x86_nchwc.checks.blocked_types import BLOCKED_DOMAIN, noted

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

_NUMBERS_AS_INPUTS = 11
"""The opset since which Clip, Pad and Slice have their numbers as inputs, and Resize has the modes of today."""
_WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
_ROUNDED_WINDOW = (*_WINDOW, "ceil_mode")
_POOLS = {
    "AveragePool": (*_ROUNDED_WINDOW, "count_include_pad"),
    "GlobalAveragePool": (),
    "GlobalMaxPool": (),
    "MaxPool": _ROUNDED_WINDOW,
}
"""The pools, which are ONNX's on blocks, and their attributes."""
_PARAMETERS = {"Clip": 2, "HardSigmoid": 2, "HardSwish": 0, "LeakyRelu": 1, "Relu": 0, "Sigmoid": 0, "Tanh": 0}
"""The activations of a convolution, and the number of their parameters."""


def operator_body(node: ir.Node, opset: int, runs_here: Callable[[int], bool]) -> OperatorBody | None:
    """The body of a blocked operator that this backend wrote, or of a FusedMatMul. `runs_here`: whether onnxruntime on
    this machine has blocks of so many channels; else the body is needed."""
    is_product = (node.domain, node.op_type) == ("com.microsoft", "FusedMatMul")
    block = noted(node, BLOCK_KEY) if node.domain == BLOCKED_DOMAIN else None
    write = _product if is_product else _WRITTEN.get(node.op_type) if block is not None else None
    if write is None:
        return None
    body = _Body(node, block or 1, opset)
    result = write(body)
    if result is None:
        return None
    return OperatorBody(body.function(result), is_needed=block is not None and not runs_here(block))


class _Body:
    """The nodes of a body, as they are added, for `node` with blocks of `block` channels."""

    def __init__(self, node: ir.Node, block: int, opset: int) -> None:
        self.node, self.block, self.opset = node, block, opset
        self.inputs = [f"x{place}" for place in range(len(node.inputs))]
        self._nodes: list[onnx.NodeProto] = []

    def add(self, operator: str, *inputs: str, **chosen: Any) -> str:
        """The result of one more node."""
        result = f"y{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [result], **chosen))
        return result

    def attributes(self, *names: str) -> dict[str, Any]:
        """Those of these attributes that the node has."""
        own = self.node.attributes
        return {name: own[name].value for name in names if name in own}

    def numbers(self, *numbers: int) -> str:
        """A constant of integers."""
        return self.constant(np.array(numbers, np.int64))

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        return self.add("Constant", value=numpy_helper.from_array(array))

    def with_zeros(self, data: str, zeros: int) -> str:
        """[N, C, H, W] with so many more channels."""
        pads = (0, 0, 0, 0, 0, zeros, 0, 0)
        if self.opset < _NUMBERS_AS_INPUTS:
            return self.add("Pad", data, pads=pads)
        return self.add("Pad", data, self.numbers(*pads))

    def first(self, data: str, channels: int) -> str:
        """The first channels of [N, C, H, W]."""
        if self.opset < _NUMBERS_AS_INPUTS - 1:
            return self.add("Slice", data, axes=(1,), starts=(0,), ends=(channels,))
        return self.add("Slice", data, self.numbers(0), self.numbers(channels), self.numbers(1))

    def clipped(self, value: str, low: float, high: float) -> str:
        if self.opset < _NUMBERS_AS_INPUTS:
            return self.add("Clip", value, min=low, max=high)
        return self.add("Clip", value, *(self.constant(np.array(bound, np.float32)) for bound in (low, high)))

    def shape(self, place: int) -> tuple[int | None, ...]:
        """The extents of an input, None for each that is not known; empty without a shape."""
        value = self.node.inputs[place] if place < len(self.node.inputs) else None
        shape = value.shape if value is not None else None
        return tuple(extent if isinstance(extent, int) else None for extent in shape or ())

    def whole_channels(self) -> int | None:
        """The channels of the first input in memory; None where they are unknown or no whole blocks."""
        shape = self.shape(0)
        channels = shape[1] if len(shape) == 4 else None
        return None if channels is None or channels % self.block else channels

    def plain(self, channels: int) -> str:
        """The first input, which is blocked, as [N, C, H, W]."""
        x = self.inputs[0]
        # Batch, height and width are copied.
        blocks = self.add("Reshape", x, self.numbers(0, channels // self.block, 0, 0, self.block))
        return self.add("Reshape", self.add("Transpose", blocks, perm=(0, 1, 4, 2, 3)), self.add("Shape", x))

    def blocked(self, plain: str, channels: int) -> str:
        """A value [N, C, H, W] in blocks, with the shape that the operators see."""
        parts = self.add("Reshape", plain, self.numbers(0, channels // self.block, self.block, -1))
        return self.add("Reshape", self.add("Transpose", parts, perm=(0, 1, 3, 2)), self.add("Shape", plain))

    def function(self, result: str) -> onnx.FunctionProto:
        outputs = ["y", *[f"unused{place}" for place in range(1, len(self.node.outputs))]]
        nodes = [*self._nodes, helper.make_node("Identity", [result], outputs[:1])]
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_function(self.node.domain, self.node.op_type, self.inputs, outputs, nodes, imports)


def _convolution(body: _Body) -> str | None:
    node, block, channels = body.node, body.block, body.whole_channels()
    kernel_shape = body.shape(1)
    if len(kernel_shape) != 4 or None in kernel_shape:
        return None
    outputs, inputs, height, width = (extent or 0 for extent in kernel_shape)
    groups = node.attributes.get_int("group", 1)
    # Of data that is not blocked there are fewer channels than a block has.
    reads_blocks = inputs >= block or groups > 1
    if outputs % block or (reads_blocks and channels is None) or (inputs >= block and inputs % block):
        return None
    perm: tuple[int, ...] = (0, 4, 1, 2, 3)
    parts = [outputs // block, inputs, height, width, block]
    if inputs >= block:
        parts, perm = [outputs // block, inputs // block, height, width, block, block], (0, 5, 1, 4, 2, 3)
    kernel = body.add("Transpose", body.add("Reshape", body.inputs[1], body.numbers(*parts)), perm=perm)
    kernel = body.add("Reshape", kernel, body.numbers(outputs, inputs, height, width))
    data = body.plain(channels) if reads_blocks and channels is not None else body.inputs[0]
    bias = body.inputs[2:3] if len(node.inputs) > 2 and node.inputs[2] is not None else []
    plain = body.add("Conv", data, kernel, *bias, group=groups, **body.attributes(*_WINDOW))
    result = body.blocked(plain, outputs)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        result = body.add("Add", result, body.inputs[3])
    return _activated(body, result)


def _activated(body: _Body, value: str) -> str | None:
    chosen = body.attributes("activation", "activation_params")
    if "activation" not in chosen:
        return value
    kind, parameters = chosen["activation"], chosen.get("activation_params", ())
    if _PARAMETERS.get(kind) != len(parameters):
        return None
    if kind == "Clip":
        return body.clipped(value, *parameters)
    if kind == "HardSwish":
        return body.add("Mul", value, body.add("HardSigmoid", value, alpha=1 / 6, beta=0.5))
    return body.add(kind, value, **dict(zip(("alpha", "beta"), parameters, strict=False)))


def _pooled(body: _Body) -> str | None:
    node, channels = body.node, body.whole_channels()
    if channels is None:
        return None
    pooled = body.add(node.op_type, body.plain(channels), **body.attributes(*_POOLS[node.op_type]))
    return body.blocked(pooled, channels)


def _upsampled(body: _Body) -> str | None:
    chosen, channels = body.attributes("mode", "coordinate_transformation_mode"), body.whole_channels()
    if channels is None or body.opset < _NUMBERS_AS_INPUTS:
        return None
    if chosen.get("mode", "nearest") == "nearest":
        chosen |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    scales = body.constant(np.array(body.attributes("scales").get("scales", ()), np.float32))
    region = body.constant(np.array((), np.float32))
    return body.blocked(body.add("Resize", body.plain(channels), region, scales, **chosen), channels)


def _reordered(body: _Body) -> str | None:
    """ReorderInput: channels are filled with zeros to whole blocks."""
    data, shape, block = body.inputs[0], body.shape(0), body.block
    channels_last = body.node.attributes.get_int("channels_last", 0)
    channels = shape[3 if channels_last else 1] if len(shape) == 4 else None
    if channels is None:
        return None
    if channels_last:
        data = body.add("Transpose", data, perm=(0, 3, 1, 2))
    if zeros := -channels % block:
        data = body.with_zeros(data, zeros)
    return body.blocked(data, channels + zeros)


def _ordered(body: _Body) -> str | None:
    """ReorderOutput: the channels without those that are padding."""
    channels = body.whole_channels()
    if channels is None:
        return None
    data = body.first(body.plain(channels), body.node.attributes.get_int("channels", channels))
    if body.node.attributes.get_int("channels_last", 0):
        return body.add("Transpose", data, perm=(0, 2, 3, 1))
    return data


def _product(body: _Body) -> str | None:
    """FusedMatMul: with `transBatch` the first axis, rows or columns, is in front of the batch."""
    node, operands = body.node, []
    for place, name in enumerate("AB"):
        axes = [*range(len(body.shape(place)))]
        if len(axes) < 2:
            return None
        if node.attributes.get_int(f"transBatch{name}", 0):
            axes = [*axes[1:-1], 0, axes[-1]]
        if node.attributes.get_int(f"trans{name}", 0):
            axes[-2:] = reversed(axes[-2:])
        operands.append(body.add("Transpose", body.inputs[place], perm=axes))
    product = body.add("MatMul", *operands)
    alpha = node.attributes.get_float("alpha", 1.0)
    return product if alpha == 1.0 else body.add("Mul", product, body.constant(np.array(alpha, np.float32)))


_WRITTEN: dict[str, Callable[[_Body], str | None]] = {
    **dict.fromkeys(_POOLS, _pooled),
    "Conv": _convolution,
    "ReorderInput": _reordered,
    "ReorderOutput": _ordered,
    "Upsample": _upsampled,
}
"""The writers of the bodies of blocked operators. They return the result's name, or None where shapes are unknown."""
