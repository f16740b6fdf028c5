"""OneFlow's auto-NHWC: its four questions, its document's example, and its own tests at the fewest transposes."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import TO_NCHW, TO_NHWC, operators

import relayout
from relayout import Implementation, Layout, Report, UsageError, load_backend
from relayout.model.io import read_model
from relayout_backends.auto_nhwc import AutoNhwc, NchwCompatible


def converted(net: Net, backend: object = "auto-nhwc") -> tuple[onnx.ModelProto, Report]:
    """The legal model, proved optimal and numerically the same."""
    model = net.model()
    legal, report = relayout.legalize(model, backend)
    assert report.status == "optimal"
    assert_same_numbers(model, legal)
    return legal, report


def batch_norm(net: Net, value: str, channels: int) -> str:
    scale, bias, mean = (net.weight(channels) for _ in range(3))
    variance = net.constant(net.rng.uniform(0.5, 1.5, channels).astype(np.float32))
    return str(net.node("BatchNormalization", value, scale, bias, mean, variance))


def small_conv(net: Net, value: str) -> str:
    return str(net.node("Conv", value, net.weight(4, 3, 2, 2), net.weight(4)))


# The document's example


def example() -> Net:
    net = Net()
    value = net.input("x", (2, 4, 8, 8))
    for _ in range(2):
        value = net.node("Relu", net.conv(value, 4, 4))
    net.output(value)
    return net


def test_the_documents_network_has_two_transposes_and_not_four() -> None:
    legal, report = converted(example())
    assert report.after.transposes == 2
    assert operators(legal) == ["Transpose", "relayout::Conv", "Relu", "relayout::Conv", "Relu", "Transpose"]
    assert [tuple(n.attribute[0].ints) for n in legal.graph.node if n.op_type == "Transpose"] == [TO_NHWC, TO_NCHW]


def test_weights_are_transposed_at_compile_time() -> None:
    net = example()
    legal, report = converted(net)
    shapes = {tuple(c.dims) for c in legal.graph.initializer if len(c.dims) == 4}
    assert shapes == {(4, 3, 3, 4)}
    assert {bytes(a.s) for n in legal.graph.node for a in n.attribute if a.name == "kernel_layout"} == {b"OHWI"}
    assert sorted(c.value for c in report.conversions) == ["relu_3", "x"]


@pytest.mark.parametrize("backend", [AutoNhwc(device="cpu"), load_backend("auto-nhwc", options={"device": "cpu"})])
def test_a_device_can_be_excluded(backend: AutoNhwc) -> None:
    legal, report = converted(example(), backend)
    assert report.after.transposes == 0
    assert operators(legal) == ["Conv", "Relu", "Conv", "Relu"]


def test_an_unknown_device_is_an_error_of_usage() -> None:
    with pytest.raises(UsageError, match="unknown device"):
        load_backend("auto-nhwc", options={"device": "gpu"})


@pytest.mark.parametrize(("shape", "kernel"), [((2, 4, 8), (4, 4, 3)), ((2, 4, 6, 6, 6), (4, 4, 3, 3, 3))])
def test_only_four_dimensions_are_converted(shape: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    net = Net()
    net.output(net.node("Conv", net.input("x", shape), net.weight(*kernel)))
    assert operators(converted(net)[0]) == ["Conv"]


def test_a_channels_last_model_is_unchanged() -> None:
    once, _ = converted(example())
    twice, report = relayout.legalize(once, "auto-nhwc")
    assert report.before == report.after
    assert operators(twice) == operators(once)


# OneFlow's own tests; each looks there for a transpose at all, none of them counts


def test_batch_norm_and_relu() -> None:
    net = Net()
    net.output(net.node("Relu", batch_norm(net, net.input("x", (2, 3, 4, 5)), 3)))
    assert converted(net)[1].after.transposes == 2


def test_a_bias_is_added_without_a_conversion() -> None:
    net = Net()
    net.output(net.node("Add", net.input("x", (2, 3, 4, 5)), net.weight(3, 1, 1)))
    assert converted(net)[1].after.transposes == 0


def test_one_convolution() -> None:
    net = Net()
    net.output(small_conv(net, net.input("x", (2, 3, 4, 5))))
    assert converted(net)[1].after.transposes == 2


def test_a_convolution_and_a_max_pool() -> None:
    net = Net()
    value = small_conv(net, net.input("x", (2, 3, 4, 5)))
    net.output(net.node("MaxPool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]))
    assert converted(net)[1].after.transposes == 2


def test_two_readers_of_one_input_share_its_transpose() -> None:
    net = Net()
    image, weight, bias = net.input("x", (2, 3, 4, 5)), net.weight(4, 3, 2, 2), net.weight(4)
    left, right = (net.node("Relu", net.node("Conv", image, weight, bias)) for _ in range(2))
    net.output(net.node("Add", left, right))
    assert converted(net)[1].after.transposes == 2


def test_a_max_pools_indices_mean_the_same_in_any_layout() -> None:
    net = Net()
    image = net.input("x", (1, 4, 4, 4))
    value, places = net.node("MaxPool", image, results=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[3, 3])
    net.output(value)
    net.output(places, onnx.TensorProto.INT64)
    assert converted(net)[1].after.transposes == 3


def test_lenet() -> None:
    net = Net()
    value = net.input("x", (2, 3, 32, 32))
    for inputs, outputs in ((3, 6), (6, 16)):
        value = net.node("Relu", net.node("Conv", value, net.weight(outputs, inputs, 5, 5), net.weight(outputs)))
        value = net.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    value = net.node("Reshape", value, net.constant([2, 400]))
    for inputs, outputs in ((400, 120), (120, 84), (84, 10)):
        value = net.node("Gemm", value, net.weight(outputs, inputs), net.weight(outputs), transB=1)
    net.output(value)
    assert converted(net)[1].after.transposes <= 2


def residual_net(blocks: int, *, ends: str) -> Net:
    net = Net()
    value = net.node("Relu", batch_norm(net, net.conv(net.input("x", (2, 3, 12, 12)), 3, 8), 8))
    value = net.node("MaxPool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    for _ in range(blocks):
        skip = value
        value = net.node("Relu", batch_norm(net, net.conv(value, 8, 8), 8))
        value = net.node("Relu", net.node("Add", batch_norm(net, net.conv(value, 8, 8), 8), skip))
    if ends == "classes":
        value = net.node("Flatten", net.node("GlobalAveragePool", value))
        value = net.node("Gemm", value, net.weight(8, 5), net.weight(5))
    net.output(value)
    return net


def test_a_residual_stack_has_one_transpose_in_and_one_out() -> None:
    assert converted(residual_net(4, ends="features"))[1].after.transposes == 2


def test_a_residual_stack_that_ends_in_a_pool_has_one_transpose_in_and_none_out() -> None:
    assert converted(residual_net(4, ends="classes"))[1].after.transposes == 1


def bottleneck(net: Net, value: str, inputs: int, width: int, stride: int) -> str:
    """ResNet's block of three convolutions; a fourth leads around it where its shape changes."""
    made = net.node("Relu", batch_norm(net, net.conv(value, inputs, width, 1), width))
    made = net.node("Relu", batch_norm(net, net.conv(made, width, width, strides=[stride, stride]), width))
    made = batch_norm(net, net.conv(made, width, 4 * width, 1), 4 * width)
    if inputs != 4 * width or stride != 1:
        value = batch_norm(net, net.conv(value, inputs, 4 * width, 1, strides=[stride, stride]), 4 * width)
    return str(net.node("Relu", net.node("Add", made, value)))


def resnet_50() -> Net:
    """Its 53 convolutions, narrow and on a small picture."""
    net = Net()
    value = net.node("Conv", net.input("x", (2, 3, 32, 32)), net.weight(8, 3, 7, 7), pads=[3, 3, 3, 3], strides=[2, 2])
    value = net.node("MaxPool", net.node("Relu", batch_norm(net, value, 8)), kernel_shape=[3, 3], strides=[2, 2])
    channels = 8
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            value = bottleneck(net, value, channels, 4, 2 if stage and not block else 1)
            channels = 16
    value = net.node("Flatten", net.node("GlobalAveragePool", value))
    net.output(net.node("Gemm", value, net.weight(16, 10), net.weight(10)))
    return net


def test_resnet_50() -> None:
    net = resnet_50()
    legal, report = relayout.legalize(net.model(), "auto-nhwc", check=True)
    assert (report.status, report.after.transposes) == ("optimal", 1)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert operators(legal).count("relayout::Conv") == 53


def test_inverse_transposes_vanish() -> None:
    net = Net()
    value = net.transpose(net.input("x", (2, 3, 4, 5)), *TO_NHWC)
    net.output(net.transpose(value, *TO_NCHW))
    assert converted(net)[1].after.transposes == 0


# Patterns that OneFlow's greedy pass does not handle


BETWEEN: dict[str, Callable[[Net, str], str]] = {
    "average pool": lambda n, v: n.node("AveragePool", v, kernel_shape=[2, 2]),
    "transposed convolution": lambda n, v: n.node("ConvTranspose", v, n.weight(8, 8, 2, 2), strides=[2, 2]),
    "upsampling": lambda n, v: n.node("Resize", v, "", n.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest"),
    "pad": lambda n, v: n.node("Pad", v, n.constant([0, 0, 1, 1, 0, 0, 1, 1])),
    "sigmoid": lambda n, v: n.node("Sigmoid", v),
    "hard swish": lambda n, v: n.node("HardSwish", v),
    "leaky relu": lambda n, v: n.node("LeakyRelu", v),
    "clip": lambda n, v: n.node("Clip", v, n.constant(np.float32(0)), n.constant(np.float32(6))),
    "dropout": lambda n, v: n.node("Dropout", v),
    "softmax over channels": lambda n, v: n.node("Softmax", v, axis=1),
    "mean over space": lambda n, v: n.node("Sub", v, n.node("ReduceMean", v, axes=[2, 3])),
    "sum of three": lambda n, v: n.node("Sum", v, v, v),
    "split": lambda n, v: n.node("Concat", *reversed(n.node("Split", v, results=2, axis=1)), axis=1),
    "slice": lambda n, v: n.node("Slice", v, n.constant([1]), n.constant([7]), n.constant([2])),
    "concatenation of rows": lambda n, v: n.node("Concat", v, v, axis=2),
    "max pool": lambda n, v: n.node("MaxPool", v, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "batch norm": lambda n, v: batch_norm(n, v, 8),
    "a bias of channels": lambda n, v: n.node("Add", v, n.weight(8, 1, 1)),
    "cast": lambda n, v: n.node("Cast", n.node("Cast", v, to=onnx.TensorProto.DOUBLE), to=onnx.TensorProto.FLOAT),
    "concatenation of channels": lambda n, v: n.node("Slice", n.node("Concat", v, v, axis=1), *cut(n, 4, 12, 1)),
    "tanh": lambda n, v: n.node("Tanh", v),
    "gelu": lambda n, v: n.node("Mul", v, n.node("Add", n.node("Erf", v), n.constant(np.float32(1)))),
    "division by a number": lambda n, v: n.node("Div", v, n.constant(np.float32(3))),
    "subtraction of channels": lambda n, v: n.node("Sub", n.weight(8, 1, 1), v),
    "mean of all": lambda n, v: n.node("Mul", v, n.node("ReduceMean", v, axes=[1, 2, 3])),
    "instance norm": lambda n, v: n.node("InstanceNormalization", v, n.weight(8), n.weight(8)),
    "layer norm": lambda n, v: n.node("LayerNormalization", v, n.weight(8, 8, 8), n.weight(8, 8, 8), axis=1),
    "adaptive pool": lambda n, v: n.node("Mul", v, n.node("GlobalAveragePool", v)),
    "parametric relu": lambda n, v: n.node("PRelu", v, n.weight(8, 1, 1)),
    "squeeze and excite": lambda n, v: n.node(
        "Mul", v, n.node("Sigmoid", n.conv(n.node("GlobalAveragePool", v), 8, 8, 1))
    ),
}


def cut(net: Net, start: int, end: int, axis: int) -> list[str]:
    return [net.constant(np.array([number], np.int64)) for number in (start, end, axis)]


@pytest.mark.parametrize("between", BETWEEN)
def test_an_operator_between_two_convolutions_costs_nothing(between: str) -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 8, 8, 8)), 8, 8))
    net.output(net.conv(BETWEEN[between](net, value), 8, 4))
    assert converted(net)[1].after.transposes == 2


def test_an_addition_to_a_raw_operand_takes_the_cheaper_side() -> None:
    net = Net()
    image, other = net.input("x", (1, 3, 6, 6)), net.input("other", (1, 8, 6, 6))
    value = net.node("Add", net.conv(image, 3, 8), other)
    net.output(net.node("Relu", value))
    assert converted(net)[1].after.transposes == 2


# The interface


class ConvolutionsAlone(NchwCompatible):
    """Convolutions run channels last, with their weights as they are."""

    name = "convolutions-alone"

    def is_nchw(self, node: ir.Node) -> bool:
        return node.op_type == "Conv"

    def operands_to_transpose(self, node: ir.Node) -> Collection[int]:
        return [0] if node.op_type in ("Conv", "MaxPool") else ()

    def results_to_transpose(self, node: ir.Node) -> Collection[int]:
        return [0] if node.op_type in ("Conv", "MaxPool") else ()


def test_a_plugin_implements_four_methods() -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 3, 8, 8)), 3, 4)
    value = net.conv(net.node("MaxPool", value, kernel_shape=[2, 2]), 4, 4)
    net.output(net.node("LRN", value, size=3))
    legal, report = converted(net, ConvolutionsAlone)
    # MaxPool may be its twin and so is, LRN was not listed.
    assert operators(legal) == [
        *("Transpose", "relayout::Conv", "relayout::MaxPool", "relayout::Conv", "Transpose", "LRN"),
    ]
    assert report.after.transposes == 2
    first = next(n for n in legal.graph.node if n.op_type == "Conv")
    assert {a.name: bytes(a.s) for a in first.attribute if a.s} == {"data_layout": b"NHWC", "kernel_layout": b"OIHW"}


class WithOwnTwins(ConvolutionsAlone):
    """The twin has its weights in an order of its own."""

    name = "with-own-twins"

    def nchw_to_nhwc(self, node: ir.Node) -> Implementation:
        twin = super().nchw_to_nhwc(node)
        inputs = [Layout.parse("HWIO") if n == 1 else layout for n, layout in enumerate(twin.inputs)]
        return Implementation(tuple(inputs), twin.results)


def test_a_plugin_may_name_the_channels_last_operator() -> None:
    legal, report = converted(example(), WithOwnTwins())
    assert report.after.transposes == 2
    assert {bytes(a.s) for n in legal.graph.node for a in n.attribute if a.name == "kernel_layout"} == {b"HWIO"}


def test_the_four_methods_of_auto_nhwc() -> None:
    """As the document has them for a convolution: data and weight are transposed, the bias is not."""
    conv, relu, *_ = read_model(example().model()).graph
    backend = AutoNhwc()
    assert (backend.is_nchw(conv), backend.is_nchw(relu)) == (True, False)
    assert (list(backend.operands_to_transpose(conv)), list(backend.results_to_transpose(conv))) == ([0, 1], [0])
    assert not backend.operands_to_transpose(relu)
    twin = backend.nchw_to_nhwc(conv)
    assert ([str(layout) for layout in twin.inputs], [str(layout) for layout in twin.results]) == (
        ["NHWC", "OHWI", "*"],
        ["NHWC"],
    )


def test_a_listed_operator_that_is_not_nchw_stays_without_a_saving() -> None:
    net = Net()
    net.output(net.node("MaxPool", net.input("x", (1, 3, 8, 8)), kernel_shape=[2, 2]))
    assert operators(converted(net, ConvolutionsAlone)[0]) == ["MaxPool"]


def test_a_plugin_without_overrides_has_no_requirements() -> None:
    assert operators(converted(example(), NchwCompatible)[0]) == ["Conv", "Relu", "Conv", "Relu"]
