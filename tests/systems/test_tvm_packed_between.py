"""TVM's packed layouts: the operators between two packed convolutions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs import Net
from tvm_nets import PACKED, axes, batch_norm, between_convolutions, converted, layouts, split


def cut(net: Net, value: str, start: int, end: int, axis: int, step: int = 1) -> str:
    return str(net.node("Slice", value, axes(net, start), axes(net, end), axes(net, axis), axes(net, step)))


def reduced(op: str, *along: int, keepdims: int) -> Callable[[Net, str], str]:
    def build(net: Net, value: str) -> str:
        result = net.node(op, value, axes=along, keepdims=keepdims)
        if not keepdims:
            result = net.node("Unsqueeze", result, axes(net, *along))
        return str(net.node("Mul", value, result))

    return build


# Operator -> how it is built on a value [2, 8, 6, 10] that is packed by fours, and the channels that it has then.
ADAPTS: dict[str, tuple[Callable[[Net, str], str], int]] = {
    "relu": (lambda n, v: n.node("Relu", v), 8),
    "clip": (lambda n, v: n.node("Clip", v, n.constant(np.float32(0)), n.constant(np.float32(1))), 8),
    "cast": (lambda n, v: n.node("Cast", n.node("Cast", v, to=11), to=1), 8),
    "where": (lambda n, v: n.node("Where", n.node("Greater", v, n.constant(np.float32(0))), v, n.node("Neg", v)), 8),
    "a constant a channel": (lambda n, v: n.node("Add", v, n.weight(8, 1, 1)), 8),
    "a constant for all": (lambda n, v: n.node("Mul", v, n.weight(1)), 8),
    "a constant a column": (lambda n, v: n.node("Add", v, n.weight(10)), 8),
    "prelu": (lambda n, v: n.node("PRelu", v, n.weight(8, 1, 1)), 8),
    "batch norm": (batch_norm, 8),
    "concatenation of channels": (lambda n, v: n.node("Concat", v, n.node("Tanh", v), axis=1), 16),
    "concatenation of columns": (lambda n, v: n.node("Concat", v, n.node("Tanh", v), axis=-1), 8),
    "concatenation with a constant": (lambda n, v: n.node("Concat", v, n.weight(2, 4, 6, 10), axis=1), 12),
    "split of channels": (lambda n, v: split(n, v, 1, 4, 4), 8),
    "split of rows": (lambda n, v: split(n, v, 2, 1, 5), 8),
    "slice of channels": (lambda n, v: cut(n, v, 4, 8, 1), 4),
    "slice of rows": (lambda n, v: cut(n, v, 5, 0, 2, -2), 8),
    "pad of rows and columns": (lambda n, v: n.node("Pad", v, axes(n, 0, 0, 1, 2, 0, 0, 0, 1)), 8),
    "pad of channels": (lambda n, v: n.node("Pad", v, axes(n, 0, 4, 0, 0, 0, 8, 0, 0)), 20),
    "max pool": (lambda n, v: n.node("MaxPool", v, kernel_shape=[2, 2]), 8),
    "average pool": (lambda n, v: n.node("AveragePool", v, kernel_shape=[2, 3], strides=[1, 2]), 8),
    "global pool": (lambda n, v: n.node("Mul", v, n.node("GlobalAveragePool", v)), 8),
    "resize": (lambda n, v: n.node("Resize", v, "", n.constant(np.array([1, 1, 2, 2], np.float32))), 8),
    "softmax of columns": (lambda n, v: n.node("Softmax", v, axis=3), 8),
    "mean of space": (reduced("ReduceMean", 2, 3, keepdims=1), 8),
    "mean of space, squeezed": (reduced("ReduceMean", 2, 3, keepdims=0), 8),
    "largest channel": (reduced("ReduceMax", 1, keepdims=1), 8),
    "sum of channels, squeezed": (reduced("ReduceSumSquare", 1, keepdims=0), 8),
    "mean of all but the batch": (reduced("ReduceMean", 1, 2, 3, keepdims=1), 8),
    "residual sum": (lambda n, v: n.node("Add", n.conv(v, 8, 8), v), 8),
}


def packed(build: Callable[[Net, str], str], channels: int) -> Net:
    return between_convolutions(build, channels, shape=(2, 8, 6, 10), results=8)


@pytest.mark.parametrize("what", ADAPTS)
def test_an_operator_between_two_packed_convolutions_adapts_to_them(what: str) -> None:
    legal, report = converted(packed(*ADAPTS[what]), PACKED)
    assert report.after.transposes == 2
    assert {attributes["data_layout"] for attributes in layouts(legal, "Conv")} == {"NCHW4c"}


@pytest.mark.parametrize(
    ("build", "channels", "transposes"),
    [
        (lambda n, v: split(n, v, 1, 3, 5), 8, 4),
        (lambda n, v: n.node("Pad", v, axes(n, 0, 1, 0, 0, 0, 3, 0, 0)), 12, 4),
        (lambda n, v: n.node("Concat", n.weight(2, 2, 6, 10), v, n.weight(2, 2, 6, 10), axis=1), 12, 4),
        # Four channels by fours are channels last: once unpacked, these need not be packed again.
        (lambda n, v: cut(n, v, 2, 6, 1), 4, 3),
        (lambda n, v: cut(n, v, 0, 8, 1, 2), 4, 3),
    ],
)
def test_a_packed_axis_that_does_not_divide_is_unpacked(
    build: Callable[[Net, str], str], channels: int, transposes: int
) -> None:
    assert converted(packed(build, channels), PACKED)[1].after.transposes == transposes
