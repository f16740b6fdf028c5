"""TVM's ConvertLayout: the operators between two converted convolutions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs import Net, random_feeds, run
from onnx import TensorProto
from tvm_nets import axes, batch_norm, between_convolutions, converted, split


def stacked(net: Net, value: str, axis: int) -> str:
    parts = [net.node("Unsqueeze", each, axes(net, axis)) for each in (value, net.node("Tanh", value))]
    both = net.node("Concat", *parts, axis=axis)
    return str(net.node("ReduceSum", both, axes(net, axis), keepdims=0))


def squeezed(net: Net, value: str, axis: int) -> str:
    """Rows or columns reduced, the axis taken out, and put in again."""
    reduced = net.node("ReduceMax", value, axes=[axis])
    return str(net.node("Unsqueeze", net.node("Tanh", net.node("Squeeze", reduced, axes(net, axis))), axes(net, axis)))


def where(net: Net, value: str) -> str:
    positive = net.node("Greater", value, net.constant(np.float32(0.2)))
    return str(net.node("Where", positive, value, net.node("Neg", value)))


def repeated(net: Net, value: str) -> str:
    tiled = net.node("Tile", net.node("Unsqueeze", value, axes(net, 2)), axes(net, 1, 1, 2, 1, 1))
    return str(net.node("Reshape", tiled, axes(net, 2, 16, 8, 10)))


def positive(net: Net, value: str) -> str:
    return str(net.node("Greater", value, net.constant(np.float32(-9))))


def centred(net: Net, value: str) -> str:
    return str(net.node("Sub", value, net.node("ReduceMean", value, axes=[2, 3])))


# Operator -> how it is built on a value [2, 8, 8, 10]; all keep the 8 channels, except where it says otherwise.
BETWEEN: dict[str, Callable[[Net, str], str]] = {
    "batch norm": batch_norm,
    "instance norm": lambda n, v: n.node("InstanceNormalization", v, n.weight(8), n.weight(8)),
    "layer norm over three axes": lambda n, v: n.node(
        "LayerNormalization", v, n.weight(8, 8, 10), n.weight(8, 8, 10), axis=1
    ),
    "pad": lambda n, v: n.node("Pad", v, axes(n, 0, 0, 2, 3, 0, 0, 1, 0)),
    "pad of channels": lambda n, v: n.node(
        "Slice", n.node("Pad", v, axes(n, 0, 2, 0, 0, 0, 1, 0, 0)), axes(n, 1), axes(n, 9), axes(n, 1)
    ),
    "pad by reflection": lambda n, v: n.node("Pad", v, axes(n, 0, 0, 2, 3, 0, 0, 1, 0), mode="reflect"),
    "concatenation of columns": lambda n, v: n.node("Concat", v, n.node("Sigmoid", v), axis=-1),
    "concatenation with a constant": lambda n, v: n.node("Concat", v, n.weight(2, 8, 3, 10), axis=2),
    "slice": lambda n, v: n.node("Slice", v, axes(n, 2, 1), axes(n, 8, -1), axes(n, 3, 2), axes(n, 2, 3)),
    "slice backwards": lambda n, v: n.node(
        "Slice", v, axes(n, 7, 9), axes(n, -99, 0), axes(n, -3, -1), axes(n, -1, -2)
    ),
    "split of channels": lambda n, v: split(n, v, 1, 3, 5),
    "split of columns": lambda n, v: split(n, v, -1, 3, 7),
    "squeeze of axis 3": lambda n, v: squeezed(n, v, 3),
    "squeeze of axis -2": lambda n, v: squeezed(n, v, -2),
    "stack of batches": lambda n, v: stacked(n, v, 0),
    "stack of channels": lambda n, v: stacked(n, v, 1),
    "gather of channels": lambda n, v: n.node("Gather", v, axes(n, 3, 1, 2, 7, 6, 5, 4, 0), axis=1),
    "scatter": lambda n, v: n.node(
        "ScatterElements", v, n.constant(np.zeros((2, 1, 8, 10), np.int64)), n.weight(2, 1, 8, 10), axis=1
    ),
    "tile": lambda n, v: n.node("Tile", v, axes(n, 1, 1, 2, 3)),
    "expand": lambda n, v: n.node(
        "Mul", v, n.node("Expand", n.node("ReduceMean", v, axes=[2, 3]), axes(n, 2, 8, 8, 10))
    ),
    "top of rows": lambda n, v: n.node("TopK", v, axes(n, 4), results=2, axis=2)[0],
    "place of the largest channel": lambda n, v: n.node("Mul", v, n.node("Cast", n.node("ArgMax", v, axis=1), to=1)),
    "running sum of channels": lambda n, v: n.node("CumSum", v, n.constant(np.array(1))),
    "softmax of channels": lambda n, v: n.node("Softmax", v, axis=1),
    "log softmax, negative axis": lambda n, v: n.node("LogSoftmax", v, axis=-3),
    "norm of channels": lambda n, v: n.node("LpNormalization", v, axis=1),
    "prelu": lambda n, v: n.node("PRelu", v, n.weight(8, 1, 1)),
    "leaky relu": lambda n, v: n.node("LeakyRelu", v),
    "clip": lambda n, v: n.node("Clip", v, n.constant(np.float32(0)), n.constant(np.float32(0.6))),
    "dropout": lambda n, v: n.node("Dropout", v),
    "cast": lambda n, v: n.node("Cast", n.node("Cast", v, to=TensorProto.DOUBLE), to=TensorProto.FLOAT),
    "where": where,
    "constants of rank 3": lambda n, v: n.node("Add", n.node("Mul", v, n.weight(8, 1, 1)), n.weight(8, 1, 1)),
    "constants of rank 2": lambda n, v: n.node("Add", n.node("Mul", v, n.weight(8, 10)), n.weight(1, 10)),
    "constants as operand 0": lambda n, v: n.node("Add", n.weight(8, 1, 1), n.node("Mul", n.weight(10), v)),
    "average pool": lambda n, v: n.node("AveragePool", v, kernel_shape=[2, 2]),
    "max pool": lambda n, v: n.node("MaxPool", v, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    "global pool": lambda n, v: n.node("Mul", v, n.node("GlobalMaxPool", v)),
    "linear resize": lambda n, v: n.node(
        "Resize", v, "", n.constant(np.array([1, 1, 2, 3], np.float32)), mode="linear"
    ),
    "cubic resize": lambda n, v: n.node("Resize", v, "", "", axes(n, 2, 8, 5, 7), mode="cubic"),
    "response norm": lambda n, v: n.node("LRN", v, size=3),
    "space to depth and back": lambda n, v: n.node(
        "DepthToSpace", n.node("Relu", n.node("SpaceToDepth", v, blocksize=2)), blocksize=2
    ),
    "slice like another": lambda n, v: n.node(
        "Slice", v, axes(n, 0, 0), n.node("Slice", n.node("Shape", v), axes(n, 2), axes(n, 4)), axes(n, 2, 3)
    ),
    "any and all": lambda n, v: n.node(
        "Mul", v, n.node("Cast", n.node("ReduceMin", n.node("Cast", positive(n, v), to=3), axes=[1]), to=1)
    ),
    "place of the smallest row": lambda n, v: n.node(
        "Mul", v, n.node("Cast", n.node("ArgMin", v, axis=-2, keepdims=1), to=1)
    ),
    "variance": lambda n, v: n.node(
        "Div", v, n.node("Sqrt", n.node("ReduceMean", n.node("Mul", centred(n, v), centred(n, v)), axes=[2, 3]))
    ),
    "running product backwards": lambda n, v: n.node("CumSum", v, n.constant(np.array(-2)), reverse=1, exclusive=1),
    "reduction of all but channels": lambda n, v: n.node("Add", v, n.node("ReduceL2", v, axes=[0, 2, 3])),
    "elements gathered": lambda n, v: n.node(
        "GatherElements", v, n.constant(n.rng.integers(0, 8, (2, 8, 8, 10))), axis=1
    ),
    "nearest upsampling of columns alone": lambda n, v: n.node(
        "Resize", v, "", n.constant(np.array([1, 1, 1, 2], np.float32)), mode="nearest"
    ),
    "merging rows and columns": lambda n, v: n.node(
        "Reshape", n.node("Tanh", n.node("Reshape", v, axes(n, 2, 8, 80))), axes(n, 2, 8, 8, 10)
    ),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_an_operator_between_two_convolutions_adapts_to_them(what: str) -> None:
    assert converted(between_convolutions(BETWEEN[what]))[1].after.transposes == 2


def test_group_norm_adapts_too() -> None:
    net = Net(opset=21)
    value = net.node("Relu", net.conv(net.input("x", (2, 8, 8, 10)), 8, 8))
    value = net.node("GroupNormalization", value, net.weight(8), net.weight(8), num_groups=4)
    net.output(net.conv(value, 8, 4))
    assert converted(net)[1].after.transposes == 2


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("reduced", [[1], [2, 3], [-1], [1, 2, 3]])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMean"])
def test_a_reduction_adapts_with_and_without_the_axes_that_it_reduces(
    op: str, reduced: list[int], keepdims: int
) -> None:
    def build(net: Net, value: str) -> str:
        result = net.node(op, value, axes=reduced, keepdims=keepdims)
        if not keepdims:
            result = net.node("Unsqueeze", result, axes(net, *(axis % 4 for axis in reduced)))
        return str(net.node("Mul", value, result))

    assert converted(between_convolutions(build))[1].after.transposes == 2


def test_an_operator_that_changes_the_number_of_channels_adapts_too() -> None:
    both = between_convolutions(lambda n, v: n.node("Concat", v, n.node("Sigmoid", v), axis=1), 16)
    assert converted(both)[1].after.transposes == 2
    assert converted(between_convolutions(repeated, 16))[1].after.transposes == 2


@pytest.mark.parametrize(
    ("build", "channels", "transposes"),
    [
        # The last axis is W, and this works along the last axis alone.
        (lambda n, v: n.node("LayerNormalization", v, n.weight(10), n.weight(10)), 8, 4),
        # The product turns: its matrix is read anew for each row, which is cheaper than two transposes.
        (lambda n, v: n.node("MatMul", v, n.weight(10, 6)), 8, 2),
        # Rows and columns are exchanged, so the bytes move once more.
        (lambda n, v: n.node("Tanh", n.transpose(v, 0, 1, 3, 2)), 8, 3),
    ],
)
def test_an_operator_that_cannot_adapt_has_its_minimal_cost(
    build: Callable[[Net, str], str], channels: int, transposes: int
) -> None:
    assert converted(between_convolutions(build, channels))[1].after.transposes == transposes


def test_the_numbers_depend_on_the_input_at_all() -> None:
    """The comparisons above would pass on a network that gives constants."""
    model = between_convolutions(BETWEEN["pad"]).model()
    (one,), (other,) = (run(model, random_feeds(model, seed)) for seed in (0, 1))
    assert np.abs(one - other).max() > 0.1
