"""TVM's ConvertLayout: the graphs of its documents, and every desired layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import TO_NCHW, TO_NHWC, operators
from onnx import TensorProto
from tvm_nets import CHANNELS_LAST, Desired, converted

import relayout
from relayout import load_backend
from relayout.model.io import read_model
from relayout_backends import convert_layout


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
    options = {"desired_layouts": {operator: ["NCHW", kernel]}}
    legal, report = relayout.legalize(source, "convert-layout", backend_options=options)
    assert (report.status, report.after.transposes) == ("optimal", 2)
    assert operators(legal) == ["Transpose", "Conv", "Relu", "Conv", "Relu", "Transpose"]
    assert perms(legal) == [TO_NCHW, TO_NHWC]
    assert [tuple(c.dims) for c in legal.graph.initializer] == [(32, 64, 3, 3), (32, 32, 3, 3)]
    assert not legal.functions
    assert_same_numbers(example_by_hand(source), legal)


def test_weights_that_are_parameters_are_transposed_as_the_document_prints_it() -> None:
    source = example(weights_are_constants=False)
    options = {"desired_layouts": {"nn.conv2d": ["NCHW", "default"]}}
    legal, report = relayout.legalize(source, "convert-layout", backend_options=options)
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
    options = {"desired_layouts": {operator: [first, "default"]}}
    legal, report = relayout.legalize(source, "convert-layout", backend_options=options)
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


def test_pools_and_resizes_run_in_their_desired_layouts() -> None:
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
def test_roi_align_is_converted_only_if_named(desired: Desired, transposes: int) -> None:
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


def test_no_more_layers_are_counted_than_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook counts anew, so that all layers for each would be their square."""
    nodes = [
        node
        for node in read_model(chain("Conv", (30, 30), (4, 4, 3, 3), length=9).model()).graph
        if node.op_type == "Conv"
    ]
    options = {"desired_layouts": {"nn.conv2d": ["NHWC"]}, "skip": [1]}
    backend, is_counted, counted = load_backend("convert-layout", options=options), convert_layout._is_counted, []

    def counting(node: ir.Node) -> bool:
        counted.append(node)
        return is_counted(node)

    monkeypatch.setattr(convert_layout, "_is_counted", counting)
    layouts = [str(backend.nth_result_layout_requirements(node, 0)) for node in nodes]
    assert [place for place, layout in enumerate(layouts) if layout != "NHWC"] == [1]
    # Each layer itself, and the two layers with the Relu between them.
    assert len(counted) <= 4 * len(nodes)


def test_a_numeric_node_name_is_not_a_count() -> None:
    model = chain("Conv", (9, 8), (4, 4, 3, 3), length=2).model()
    first, second = (node for node in model.graph.node if node.op_type == "Conv")
    first.name, second.name = "first", "0"
    options = {"desired_layouts": {"nn.conv2d": ["NHWC"]}, "skip": ["0"]}
    legal, _ = relayout.legalize(model, "convert-layout", backend_options=options)
    assert {node.name: node.domain for node in legal.graph.node if node.op_type == "Conv"} == {
        "first": "relayout",
        "0": "",
    }


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_layout_propagates_as_in_tvm(length: int) -> None:
    """Nodes before the first convolution stay as they are, and those behind the last one follow it."""
    net = Net()
    value = net.node("Sigmoid", net.input("x", (1, 4, 8, 8)))
    for _ in range(length):
        value = net.node("Relu", net.conv(value, 4, 4))
    net.output(net.node("Tanh", value))
    model = net.model()
    legal, report = relayout.legalize(model, "convert-layout", backend_options={"desired_layouts": CHANNELS_LAST})
    assert report.after.transposes == 2
    assert operators(legal)[:3] == ["Sigmoid", "Transpose", "relayout::Conv"]
    assert operators(legal)[-3:] == ["Relu", "Tanh", "Transpose"]
    twice, _ = relayout.legalize(legal, "convert-layout", backend_options={"desired_layouts": CHANNELS_LAST})
    assert operators(twice) == operators(legal)
    assert_same_numbers(model, legal)
