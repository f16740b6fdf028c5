"""Graphs on which TVM's ConvertLayout leaves more transposes, crashes or computes wrong numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import TO_NCHW, TO_NHWC, operators
from onnx import TensorProto
from tvm_nets import CHANNELS_LAST, axes, between_convolutions, converted

import relayout


def test_a_convolution_wrapped_in_transposes_needs_none() -> None:
    net = Net()
    value = net.transpose(net.input("x", (1, 8, 8, 4)), *TO_NCHW)
    net.output(net.transpose(net.conv(value, 4, 4), *TO_NHWC))
    legal, report = converted(net)
    assert report.after.transposes == 0
    assert operators(legal) == ["relayout::Conv"]


@pytest.mark.parametrize("skip_comes_first", [True, False])
def test_a_residual_sum_does_not_depend_on_the_order_of_its_operands(skip_comes_first: bool) -> None:
    net = Net()
    image = net.input("x", (1, 4, 8, 8))
    operands = [net.node("Relu", image), net.conv(image, 4, 4)]
    net.output(net.node("Add", *(operands if skip_comes_first else reversed(operands))))
    assert converted(net)[1].after.transposes == 2


def test_a_chain_of_residual_blocks_keeps_two() -> None:
    net = Net()
    value = net.input("x", (1, 4, 8, 8))
    for _ in range(3):
        inner = net.conv(net.node("Relu", net.conv(value, 4, 4)), 4, 4)
        value = net.node("Relu", net.node("Add", value, inner))
    net.output(value)
    assert converted(net)[1].after.transposes == 2


def test_two_uses_of_one_input_share_a_transpose() -> None:
    net = Net()
    image = net.input("x", (1, 4, 8, 8))
    net.output(net.node("Concat", net.conv(image, 4, 4), net.conv(image, 4, 4), axis=1))
    assert converted(net)[1].after.transposes == 2


# Operators that TVM crashes on, or gets wrong; each at the end of a network, and between convolutions above.


def at_the_end(build: Callable[[Net, str], str], shape: Sequence[int] = (2, 8, 8, 10)) -> Net:
    net = Net()
    net.output(build(net, net.conv(net.input("x", shape), 8, 8)))
    return net


@pytest.mark.parametrize("axis", [None, 1, 3])
def test_repeat(axis: int | None) -> None:
    """Each element twice along an axis, or along the flattened tensor."""

    def build(net: Net, value: str) -> str:
        shape = [2, 8, 8, 10] if axis is not None else [2 * 8 * 8 * 10]
        place = axis if axis is not None else 0
        flat = value if axis is not None else net.node("Reshape", value, axes(net, -1))
        doubled = net.node("Unsqueeze", flat, axes(net, place + 1))
        tiled = net.node("Expand", doubled, axes(net, *shape[: place + 1], 2, *shape[place + 1 :]))
        return str(net.node("Reshape", tiled, axes(net, *shape[:place], 2 * shape[place], *shape[place + 1 :])))

    assert converted(at_the_end(build))[1].after.transposes <= 2


@pytest.mark.parametrize(("axis", "shape"), [(1, (8, 8, 10)), (2, (8, 10)), (-3, (8, 8, 10))])
def test_layer_norm_over_several_axes(axis: int, shape: tuple[int, ...]) -> None:
    def build(net: Net, value: str) -> str:
        return str(net.node("LayerNormalization", value, net.weight(*shape), net.weight(*shape), axis=axis))

    assert converted(at_the_end(build))[1].after.transposes <= 2


@pytest.mark.parametrize("axis", [0, 1, 4, -1])
def test_stack(axis: int) -> None:
    def build(net: Net, value: str) -> str:
        parts = [net.node("Unsqueeze", each, axes(net, axis)) for each in (value, net.node("Tanh", value))]
        return str(net.node("Concat", *parts, axis=axis))

    assert converted(at_the_end(build))[1].after.transposes <= 3


def test_stack_by_a_sequence() -> None:
    def build(net: Net, value: str) -> str:
        return str(net.node("ConcatFromSequence", net.node("SequenceConstruct", value, value), axis=1, new_axis=1))

    model = at_the_end(build).model()
    legal, report = relayout.legalize(model, "convert-layout", backend_options={"desired_layouts": CHANNELS_LAST})
    assert report.after.transposes == 2
    assert_same_numbers(model, legal)


def test_dropout_with_its_mask() -> None:
    net = Net()
    value, mask = net.node("Dropout", net.conv(net.input("x", (1, 8, 8, 8)), 8, 8), results=2)
    net.output(net.conv(net.node("Where", mask, value, net.node("Neg", value)), 8, 8))
    assert converted(net)[1].after.transposes <= 4


@pytest.mark.parametrize("axis", [-1, -2, -3, 1])
def test_squeeze_of_an_axis_counted_from_either_end(axis: int) -> None:
    def build(net: Net, value: str) -> str:
        return str(net.node("Squeeze", net.node("ReduceMean", value, axes=[axis]), axes(net, axis)))

    assert converted(at_the_end(build))[1].after.transposes <= 2


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1, 1), (8, 10), (10,), (1,), (8, 8, 10)])
@pytest.mark.parametrize("comes_first", [True, False])
def test_constants_of_any_rank(shape: tuple[int, ...], comes_first: bool) -> None:
    def build(net: Net, value: str) -> str:
        operands = [value, net.weight(*shape)]
        return str(net.node("Sub", *(reversed(operands) if comes_first else operands)))

    assert converted(between_convolutions(build))[1].after.transposes == 2


def test_arg_max_over_channels_at_the_end() -> None:
    def build(net: Net, value: str) -> str:
        return str(net.node("Cast", net.node("ArgMax", value, axis=1, keepdims=0), to=TensorProto.FLOAT))

    assert converted(at_the_end(build))[1].after.transposes <= 2


def test_dense_concatenation_with_constants_of_rank_3_keeps_two() -> None:
    """DenseNet with its batch norms taken apart; TVM ends with two transposes a convolution."""
    net = Net()
    value, channels = net.conv(net.input("x", (1, 4, 8, 8)), 4, 4), 4
    for _ in range(2):
        for _ in range(6):
            value = net.node("Concat", value, net.conv(scaled(net, value, channels), channels, 4), axis=1)
            channels += 4
        value, channels = net.conv(scaled(net, value, channels), channels, 4), 4
        value = net.node("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
    net.output(value)
    assert converted(net)[1].after.transposes == 2


def scaled(net: Net, value: str, channels: int) -> str:
    value = net.node("Mul", value, net.weight(channels, 1, 1))
    return str(net.node("Relu", net.node("Add", value, net.weight(channels, 1, 1))))
