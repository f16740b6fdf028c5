"""Networks for the tests of TVM's layouts, and their legalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from graphs import Net, assert_same_numbers
from legalization_checks import checked

from relayout import Layout, Report

Desired = Mapping[str, Sequence[str]]
CHANNELS_LAST: Desired = {"Conv": ["NHWC", "default"]}
PACKED: Desired = {"Conv": ["NCHW4c", "OIHW4i4o"]}


def converted(net: Net, desired: Desired = CHANNELS_LAST, skip: Sequence[str] = ()) -> tuple[onnx.ModelProto, Report]:
    """Legalize; assert that the result is optimal, verified and numerically the same."""
    model = net.model()
    legal, report = checked(model, "convert-layout", backend_options={"desired_layouts": desired, "skip": skip})
    assert_same_numbers(model, legal)
    return legal, report


def axes(net: Net, *numbers: int) -> str:
    return net.constant(np.array(numbers, np.int64))


def batch_norm(net: Net, value: str) -> str:
    variance = net.constant(net.rng.uniform(0.5, 1.5, 8).astype(np.float32))
    return str(net.node("BatchNormalization", value, net.weight(8), net.weight(8), net.weight(8), variance))


def split(net: Net, value: str, axis: int, *sizes: int) -> str:
    parts = net.node("Split", value, axes(net, *sizes), results=2, axis=axis)
    return str(net.node("Concat", *reversed(parts), axis=axis))


def between_convolutions(
    build: Callable[[Net, str], str], channels: int = 8, *, shape: Sequence[int] = (2, 8, 8, 10), results: int = 4
) -> Net:
    """Two convolutions with `build` between them; its result has `channels` channels."""
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", shape), 8, 8))
    net.output(net.conv(build(net, value), channels, results))
    return net


def layouts(model: onnx.ModelProto, op_type: str) -> list[dict[str, str]]:
    """The layout attributes of every node of this operator, in TVM's notation."""
    return [
        {a.name: Layout.parse(a.s.decode()).to_tvm() for a in node.attribute if a.name.endswith("_layout")}
        for node in model.graph.node
        if node.op_type == op_type
    ]
