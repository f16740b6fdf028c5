"""TVM's ConvertLayout: the graphs that its documents print, and what stands between two converted convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers, random_feeds, run
from onnx import TensorProto
from outcomes import TO_NCHW, TO_NHWC, checked, operators

import relayout
from relayout import Report, load_backend

Desired = Mapping[str, Sequence[str]]
CHANNELS_LAST: Desired = {"Conv": ["NHWC", "default"]}


def converted(net: Net, desired: Desired = CHANNELS_LAST, skip: Sequence[str] = ()) -> tuple[onnx.ModelProto, Report]:
    """The legal model, proved optimal, without a finding of the verifier, and numerically the same."""
    model = net.model()
    legal, report = checked(model, "convert-layout", desired_layouts=desired, skip=skip)
    assert_same_numbers(model, legal)
    return legal, report


def perms(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    return [tuple(node.attribute[0].ints) for node in model.graph.node if node.op_type == "Transpose"]


def attributes(model: onnx.ModelProto, op_type: str, name: str) -> set[str]:
    return {
        a.s.decode() for node in model.graph.node if node.op_type == op_type for a in node.attribute if a.name == name
    }


# The documents' example: two convolutions in NHWC, HWIO

EXAMPLE = """<ir_version: 10, opset_import: ["" : 20, "relayout" : 1]>
example (float[1,56,56,64] x{parameters}) => (float[1,56,56,32] y)
<float[1,56,56,32] a, float[1,56,56,32] b, float[1,56,56,32] c{constants}> {{
    a = relayout.Conv <data_layout = "NHWC", kernel_layout = "HWIO", kernel_shape = [3, 3], pads = [1, 1, 1, 1]>
        (x, weight1)
    b = Relu (a)
    c = relayout.Conv <data_layout = "NHWC", kernel_layout = "HWIO", kernel_shape = [3, 3], pads = [1, 1, 1, 1]>
        (b, weight2)
    y = Relu (c)
}}"""
WEIGHTS = ", float[3,3,64,32] weight1, float[3,3,32,32] weight2"


def example(*, weights_are_constants: bool) -> onnx.ModelProto:
    if not weights_are_constants:
        return onnx.parser.parse_model(EXAMPLE.format(parameters=WEIGHTS, constants=""))
    model = onnx.parser.parse_model(EXAMPLE.format(parameters="", constants=""))
    rng = np.random.default_rng(0)
    for name, channels in (("weight1", 64), ("weight2", 32)):
        weight = rng.standard_normal((3, 3, channels, 32), np.float32) / 16
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def example_by_hand(source: onnx.ModelProto) -> onnx.ModelProto:
    """The example in ONNX's own operators, each convolution between two transposes."""
    net = Net()
    value = net.input("x", (1, 56, 56, 64))
    for constant in source.graph.initializer:
        weight = net.constant(onnx.numpy_helper.to_array(constant).transpose(3, 2, 0, 1))
        value = net.node("Conv", net.transpose(value, *TO_NCHW), weight, pads=[1, 1, 1, 1])
        value = net.node("Relu", net.transpose(value, *TO_NHWC))
    net.output(value)
    return net.model()


@pytest.mark.parametrize("operator", ["nn.conv2d", "Conv"])
@pytest.mark.parametrize("kernel", ["default", "OIHW"])
def test_the_documents_example_is_converted_as_it_is_printed(operator: str, kernel: str) -> None:
    source = example(weights_are_constants=True)
    legal, report = relayout.legalize(source, "convert-layout", desired_layouts={operator: ["NCHW", kernel]})
    assert (report.status, report.after.transposes) == ("optimal", 2)
    assert operators(legal) == ["Transpose", "Conv", "Relu", "Conv", "Relu", "Transpose"]
    assert perms(legal) == [TO_NCHW, TO_NHWC]
    assert [tuple(c.dims) for c in legal.graph.initializer] == [(32, 64, 3, 3), (32, 32, 3, 3)]
    assert not legal.functions
    assert_same_numbers(example_by_hand(source), legal)


def test_weights_that_are_parameters_are_transposed_as_the_document_prints_it() -> None:
    source = example(weights_are_constants=False)
    legal, report = relayout.legalize(source, "convert-layout", desired_layouts={"nn.conv2d": ["NCHW", "default"]})
    assert report.after.transposes == 4
    assert sorted(perms(legal)) == sorted([TO_NCHW, (3, 2, 0, 1), (3, 2, 0, 1), TO_NHWC])
    # One data transform each at the start and at the end, and one for each weight.
    assert [op for op in operators(legal) if op != "Transpose"] == ["Conv", "Relu", "Conv", "Relu"]
    assert (legal.graph.node[0].input[0], legal.graph.node[-1].output[0]) == ("x", "y")
    assert operators(legal)[-1] == "Transpose"


# Desired layouts


def chain(op: str, spatial: Sequence[int], kernel: Sequence[int], length: int = 2, **attributes: object) -> Net:
    net = Net()
    value = net.input("x", (2, 4, *spatial))
    for _ in range(length):
        value = net.node("Relu", net.node(op, value, net.weight(*kernel), net.weight(4), **attributes))
    net.output(value)
    return net


CONVOLUTIONS: dict[str, tuple[Callable[[], Net], str, list[str], str]] = {
    "1d": (lambda: chain("Conv", (9,), (4, 4, 3), pads=[1, 1]), "nn.conv1d", ["NWC", "default"], "WIO"),
    "1d, explicit": (lambda: chain("Conv", (9,), (4, 4, 3)), "Conv", ["NWC", "OWI"], "OWI"),
    "2d": (lambda: chain("Conv", (9, 8), (4, 4, 3, 3)), "nn.conv2d", ["NHWC", "default"], "HWIO"),
    "2d, explicit": (lambda: chain("Conv", (9, 8), (4, 4, 3, 3)), "Conv", ["NHWC", "OHWI"], "OHWI"),
    "2d, batch inside": (lambda: chain("Conv", (9, 8), (4, 4, 3, 3)), "Conv", ["HWNC"], "HWOI"),
    "2d, channels first of all": (lambda: chain("Conv", (9, 8), (4, 4, 3, 3)), "Conv", ["CHWN", "IHWO"], "IHWO"),
    "3d": (lambda: chain("Conv", (7, 6, 5), (4, 4, 3, 3, 2)), "nn.conv3d", ["NDHWC", "default"], "DHWIO"),
    "depthwise": (lambda: chain("Conv", (9, 8), (4, 1, 3, 3), group=4), "Conv", ["NHWC", "default"], "HWOI"),
    "grouped": (lambda: chain("Conv", (9, 8), (4, 2, 3, 3), group=2, strides=[1, 2]), "Conv", ["NHWC"], "HWIO"),
    "dilated": (lambda: chain("Conv", (9, 8), (4, 4, 3, 3), dilations=[2, 1]), "Conv", ["NHWC"], "HWIO"),
    "transposed 1d": (lambda: chain("ConvTranspose", (5,), (4, 4, 2)), "nn.conv1d_transpose", ["NWC"], "WIO"),
    "transposed 2d": (
        lambda: chain("ConvTranspose", (5, 4), (4, 4, 2, 3), strides=[2, 1]),
        "nn.conv2d_transpose",
        ["NHWC", "default"],
        "HWIO",
    ),
    "transposed 3d": (
        lambda: chain("ConvTranspose", (3, 4, 3), (4, 4, 2, 2, 2)),
        "nn.conv3d_transpose",
        ["NDHWC", "default"],
        "DHWOI",
    ),
    "transposed, grouped": (
        lambda: chain("ConvTranspose", (5, 4), (4, 2, 2, 2), group=2, strides=[2, 2], output_padding=[1, 1]),
        "ConvTranspose",
        ["NHWC"],
        "HWIO",
    ),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_of_every_kind_run_in_the_desired_layout(kind: str) -> None:
    build, operator, desired, kernel = CONVOLUTIONS[kind]
    legal, report = converted(build(), {operator: desired})
    op_type = "ConvTranspose" if kind.startswith("transposed") else "Conv"
    assert report.after.transposes == 2
    assert attributes(legal, op_type, "data_layout") == {desired[0]}
    assert attributes(legal, op_type, "kernel_layout") == {kernel}


@pytest.mark.parametrize("kind", ["1d", "2d", "3d", "depthwise", "grouped", "transposed 2d"])
def test_a_channels_last_model_comes_back_in_standard_operators(kind: str) -> None:
    """The way of the document: from NHWC, as TFLite has it, to NCHW."""
    build, operator, desired, _ = CONVOLUTIONS[kind]
    net = build()
    ends = {"input_layouts": {"x": desired[0]}, "output_layouts": {net.outputs[0].name: desired[0]}}
    source, _ = relayout.legalize(net.model(), "nhwc", **ends)
    assert "Transpose" not in operators(source)
    first = {"NWC": "NCW", "NHWC": "NCHW", "NDHWC": "NCDHW"}[desired[0]]
    legal, report = relayout.legalize(source, "convert-layout", desired_layouts={operator: [first, "default"]})
    assert report.after.transposes == 2
    assert [node.domain for node in legal.graph.node if node.op_type.startswith("Conv")] == ["", ""]
    assert_same_numbers(source, legal)


@pytest.mark.parametrize(("skipped", "transposes"), [("n0", 2), ("n2", 4), ("n4", 2)])
def test_a_skipped_layer_stays_as_it_is(skipped: str, transposes: int) -> None:
    legal, report = converted(chain("Conv", (9, 8), (4, 4, 3, 3), length=3), skip=[skipped])
    assert report.after.transposes == transposes
    assert [node.name for node in legal.graph.node if node.op_type == "Conv" and not node.domain] == [skipped]


def test_a_quantised_convolution_keeps_its_scales_in_their_places() -> None:
    net = Net()
    value = net.input("x", (1, 4, 8, 8), TensorProto.UINT8)
    scale, zero = net.constant(np.float32(0.1)), net.constant(np.uint8(3))
    weight_scale, weight_zero = net.constant(np.full(4, 0.1, np.float32)), net.constant(np.zeros(4, np.int8))
    for _ in range(2):
        weight = net.constant(net.rng.integers(-5, 5, (4, 4, 3, 3)).astype(np.int8))
        operands = (value, scale, zero, weight, weight_scale, weight_zero, scale, zero)
        value = net.node("QLinearConv", *operands, pads=[1, 1, 1, 1])
    net.output(value, TensorProto.UINT8)
    legal, report = converted(net, {"qnn.conv2d": ["NHWC", "default"]})
    assert report.after.transposes == 2
    assert attributes(legal, "QLinearConv", "kernel_layout") == {"HWIO"}


def test_quantised_chains_move_one_byte_an_element() -> None:
    net = Net()
    value = net.input("x", (1, 4, 8, 8))
    for _ in range(2):
        weight = net.constant(net.rng.integers(-5, 5, (4, 4, 3, 3)).astype(np.int8))
        scales, zeros = net.constant(np.full(4, 0.02, np.float32)), net.constant(np.zeros(4, np.int8))
        weight = net.node("DequantizeLinear", weight, scales, zeros, axis=0)
        value = net.node("Relu", net.node("Conv", quantised(net, value), weight, pads=[1, 1, 1, 1]))
    net.output(quantised(net, value))
    _, report = converted(net)
    assert report.after.transposes == 2
    assert report.after.bytes == 2 * 2 * 4 * 8 * 8


def quantised(net: Net, value: str) -> str:
    scale, zero = net.constant(np.float32(0.05)), net.constant(np.uint8(128))
    return str(net.node("DequantizeLinear", net.node("QuantizeLinear", value, scale, zero), scale, zero))


def test_pools_and_resizes_run_in_the_layouts_that_are_desired_of_them() -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 4, 8, 8)), 4, 4)
    value = net.node("Resize", value, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    value = net.node("AveragePool", net.node("MaxPool", value, kernel_shape=[2, 2]), kernel_shape=[3, 3])
    net.output(value)
    names = ("nn.max_pool2d", "nn.avg_pool2d", "image.resize2d")
    legal, report = converted(net, {name: ["NHWC"] for name in names})
    assert report.after.transposes == 2
    assert {op.rpartition("::")[2] for op in operators(legal) if "::" in op} >= {"MaxPool", "AveragePool"}


def roi_align(net: Net, value: str) -> str:
    boxes = net.constant(np.array([[0, 0, 4, 4], [1, 1, 6, 7]], np.float32))
    return str(net.node("RoiAlign", value, boxes, net.constant([0, 1]), output_height=3, output_width=3))


@pytest.mark.parametrize(
    ("desired", "transposes"),
    [({**CHANNELS_LAST, "vision.roi_align": ["NHWC", "default"]}, 2), (CHANNELS_LAST, 4)],
)
def test_roi_align_goes_along_only_where_it_is_named(desired: Desired, transposes: int) -> None:
    net = Net()
    net.output(net.conv(roi_align(net, net.conv(net.input("x", (2, 4, 8, 8)), 4, 4)), 4, 4))
    assert converted(net, desired)[1].after.transposes == transposes


def test_a_deformable_convolutions_offsets_follow_its_data() -> None:
    net = Net(opset=19)
    image, offsets = net.input("x", (1, 4, 6, 6)), net.weight(1, 18, 6, 6)
    net.output(net.node("DeformConv", image, net.weight(4, 4, 3, 3), offsets, pads=[1, 1, 1, 1]))
    assert converted(net, {"nn.deformable_conv2d": ["NHWC", "default"]})[1].after.transposes == 2


def test_offsets_and_a_mask_that_are_computed_follow_the_data() -> None:
    net = Net(opset=19)
    image = net.node("Relu", net.conv(net.input("x", (1, 4, 6, 6)), 4, 4))
    offsets, mask = net.conv(image, 4, 18), net.node("Sigmoid", net.conv(image, 4, 9))
    net.output(net.node("DeformConv", image, net.weight(4, 4, 3, 3), offsets, net.weight(4), mask, pads=[1, 1, 1, 1]))
    both: Desired = {**CHANNELS_LAST, "nn.deformable_conv2d": ["NHWC", "default"]}
    assert converted(net, both)[1].after.transposes == 2


def test_a_pool_of_regions_runs_in_the_layout_that_is_desired_of_it() -> None:
    net = Net()
    boxes = net.constant(np.array([[0, 0, 0, 4, 4], [1, 1, 1, 6, 7]], np.float32))
    pooled = net.node("MaxRoiPool", net.conv(net.input("x", (2, 4, 8, 8)), 4, 4), boxes, pooled_shape=[3, 3])
    net.output(net.conv(pooled, 4, 4))
    desired: Desired = {**CHANNELS_LAST, "vision.roi_pool": ["NHWC", "default"]}
    assert converted(net, desired)[1].after.transposes == 2


def test_a_result_may_have_a_layout_of_its_own() -> None:
    """The list of three that TVM's Relax takes."""
    net = Net()
    net.output(net.conv(net.input("x", (1, 4, 8, 8)), 4, 4))
    legal, report = converted(net, {"relax.nn.conv2d": ["NHWC", "OHWI", "NCHW"]})
    assert report.after.transposes == 1
    assert attributes(legal, "Conv", "out_layout") == {"NCHW"}


@pytest.mark.parametrize("skip", [[0, 2], ["0", "2"]])
def test_layers_are_skipped_by_tvms_count(skip: list[str | int]) -> None:
    net = chain("Conv", (9, 8), (4, 4, 3, 3), length=3)
    legal, report = relayout.legalize(
        net.model(),
        load_backend("convert-layout", options={"desired_layouts": {"nn.conv2d": ["NHWC", "default"]}, "skip": skip}),
    )
    assert [node.domain for node in legal.graph.node if node.op_type == "Conv"] == ["", "relayout", ""]
    assert report.after.transposes == 2


def test_digits_that_are_a_nodes_name_are_no_count() -> None:
    model = chain("Conv", (9, 8), (4, 4, 3, 3), length=2).model()
    first, second = (node for node in model.graph.node if node.op_type == "Conv")
    first.name, second.name = "first", "0"
    legal, _ = relayout.legalize(model, "convert-layout", desired_layouts={"nn.conv2d": ["NHWC"]}, skip=["0"])
    assert {node.name: node.domain for node in legal.graph.node if node.op_type == "Conv"} == {
        "first": "relayout",
        "0": "",
    }


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_layout_flows_down_as_tvm_carries_it(length: int) -> None:
    """What stands before the first convolution stays as it is, what stands below the last one follows it."""
    net = Net()
    value = net.node("Sigmoid", net.input("x", (1, 4, 8, 8)))
    for _ in range(length):
        value = net.node("Relu", net.conv(value, 4, 4))
    net.output(net.node("Tanh", value))
    model = net.model()
    legal, report = relayout.legalize(model, "convert-layout", desired_layouts=CHANNELS_LAST)
    assert report.after.transposes == 2
    assert operators(legal)[:3] == ["Sigmoid", "Transpose", "relayout::Conv"]
    assert operators(legal)[-3:] == ["Relu", "Tanh", "Transpose"]
    twice, _ = relayout.legalize(legal, "convert-layout", desired_layouts=CHANNELS_LAST)
    assert operators(twice) == operators(legal)
    assert_same_numbers(model, legal)


# What stands between two converted convolutions


def axes(net: Net, *numbers: int) -> str:
    return net.constant(np.array(numbers, np.int64))


def batch_norm(net: Net, value: str) -> str:
    variance = net.constant(net.rng.uniform(0.5, 1.5, 8).astype(np.float32))
    return str(net.node("BatchNormalization", value, net.weight(8), net.weight(8), net.weight(8), variance))


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


def split(net: Net, value: str, axis: int, *sizes: int) -> str:
    parts = net.node("Split", value, axes(net, *sizes), results=2, axis=axis)
    return str(net.node("Concat", *reversed(parts), axis=axis))


# What it is -> how it is built on a value [2, 8, 8, 10]; all but what says so keeps the 8 channels.
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


def between_convolutions(build: Callable[[Net, str], str], channels: int = 8) -> Net:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (2, 8, 8, 10)), 8, 8))
    net.output(net.conv(build(net, value), channels, 4))
    return net


@pytest.mark.parametrize("what", BETWEEN)
def test_what_stands_between_two_convolutions_adapts_to_them(what: str) -> None:
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


def test_what_changes_the_number_of_channels_adapts_too() -> None:
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
def test_what_cannot_adapt_costs_what_it_must(build: Callable[[Net, str], str], channels: int, transposes: int) -> None:
    assert converted(between_convolutions(build, channels))[1].after.transposes == transposes


# Where TVM leaves more transposes, crashes, or computes something else


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


# What TVM crashes on, or computes wrongly; each at the end of a network, and between convolutions above.


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
    legal, report = relayout.legalize(model, "convert-layout", desired_layouts=CHANNELS_LAST)
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


def test_the_place_of_the_largest_channel_at_the_end() -> None:
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


def test_the_numbers_depend_on_the_input_at_all() -> None:
    """The comparisons above would pass on a network that gives constants."""
    model = between_convolutions(BETWEEN["pad"]).model()
    (one,), (other,) = (run(model, random_feeds(model, seed)) for seed in (0, 1))
    assert np.abs(one - other).max() > 0.1
