"""TVM's packed layouts: `NCHW4c` with `OIHW4o`, `NCHW16c` with `OIHW16i16o`, and operators on a packed axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import operators
from tvm_nets import PACKED, axes, converted, layouts

import relayout
from relayout import load_backend
from relayout.layout.relaid_constant import apply_step
from relayout.model.io import read_model, to_json


def chain(channels: int, **attributes: int) -> Net:
    net = Net()
    value = net.input("x", (2, channels, 6, 5))
    for _ in range(2):
        value = net.node("Relu", net.conv(value, channels, channels, **attributes))
    net.output(value)
    return net


@pytest.mark.parametrize(
    ("channels", "data", "kernel", "shape"),
    [
        (8, "NCHW4c", "OIHW4o", (2, 8, 3, 3, 4)),
        (8, "NCHW4c", "OIHW4i4o", (2, 2, 3, 3, 4, 4)),
        (16, "NCHW16c", "OIHW16i16o", (1, 1, 3, 3, 16, 16)),
        (32, "NCHW16c", "OIHW16i16o", (2, 2, 3, 3, 16, 16)),
        (8, "NCHW4c", "OHWI", (8, 3, 3, 8)),
        (8, "NHWC4c", "HWOI4o", (3, 3, 2, 8, 4)),
    ],
)
def test_packed_convolutions_share_two_data_transforms_and_have_their_weights_packed(
    channels: int, data: str, kernel: str, shape: tuple[int, ...]
) -> None:
    legal, report = converted(chain(channels), {"nn.conv2d": [data, kernel]})
    assert report.after.transposes == 2
    assert layouts(legal, "Conv") == [{"data_layout": data, "kernel_layout": kernel}] * 2
    assert {node.domain for node in legal.graph.node if node.op_type == "Conv"} == {"relayout"}
    assert {tuple(c.dims) for c in legal.graph.initializer if len(c.dims) == len(shape)} == {shape}


def test_a_depthwise_convolution_is_packed_by_its_output_channels() -> None:
    legal, report = converted(chain(8, group=8), {"Conv": ["NCHW4c", "OIHW4o"]})
    assert report.after.transposes == 2
    assert layouts(legal, "Conv") == [{"data_layout": "NCHW4c", "kernel_layout": "OIHW4o"}] * 2


@pytest.mark.parametrize(
    ("data", "kernel", "transposes"),
    [("NCHW4c", "OIHW1i4o", 2), ("NCHW1c", "OIHW1i1o", 0), ("NCHW1c", "OIHW", 0), ("NCHW", "OIHW1i", 0)],
)
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_tile_of_one_is_a_dimension_that_moves_nothing(groups: int, data: str, kernel: str, transposes: int) -> None:
    desired = {"Conv": [data, kernel]}
    legal, report = converted(chain(8, group=groups), desired)
    assert report.after.transposes == transposes
    assert layouts(legal, "Conv") == [{"data_layout": data, "kernel_layout": kernel}] * 2
    again, second = relayout.legalize(legal, "convert-layout", backend_options={"desired_layouts": desired})
    assert (second.after, operators(again)) == (report.after, operators(legal))


@pytest.mark.parametrize("result", ["NCHW8c", "NCHW2c", "NHWC8c", "NCHW3h", "NHWC"])
def test_a_result_may_have_another_layout_than_the_data(result: str) -> None:
    net = chain(8)
    desired = {"Conv": ["NCHW4c", "OIHW4i4o", result]}
    legal, report = converted(net, desired)
    assert all(said["out_layout"] == result for said in layouts(legal, "Conv"))
    again, second = relayout.legalize(legal, "convert-layout", backend_options={"desired_layouts": desired})
    assert (second.after, operators(again)) == (report.after, operators(legal))


def test_a_transposed_convolution_is_packed_too() -> None:
    net = Net()
    value = net.input("x", (1, 8, 4, 3))
    for _ in range(2):
        value = net.node("Relu", net.node("ConvTranspose", value, net.weight(8, 8, 2, 2), strides=[2, 1]))
    net.output(value)
    legal, report = converted(net, {"nn.conv2d_transpose": ["NCHW4c", "IOHW4i4o"]})
    assert report.after.transposes == 2
    assert layouts(legal, "ConvTranspose") == [{"data_layout": "NCHW4c", "kernel_layout": "IOHW4i4o"}] * 2


def test_a_convolution_whose_channels_do_not_divide_stays_as_it_is() -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 3, 6, 6)), 3, 8))
    net.output(net.conv(value, 8, 8))
    legal, report = converted(net, PACKED)
    assert [node.domain for node in legal.graph.node if node.op_type == "Conv"] == ["", "relayout"]
    assert report.after.transposes == 2


def test_plain_channels_last_and_packed_convolutions_live_in_one_network() -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 8, 6, 6)), 8, 8))
    net.output(net.node("Relu", net.node("ConvTranspose", value, net.weight(8, 8, 2, 2))))
    legal, report = converted(net, {**PACKED, "ConvTranspose": ["NHWC", "default"]})
    assert layouts(legal, "ConvTranspose") == [{"data_layout": "NHWC", "kernel_layout": "HWIO"}]
    assert report.after.transposes == 3


# Pools, Resize and RoiAlign that are asked for a packed layout


def resize(net: Net, value: str, dimensions: int, mode: str) -> str:
    return str(net.node("Resize", value, "", net.constant(np.array([1, 1] + [2] * dimensions, np.float32)), mode=mode))


def roi_align(net: Net, value: str) -> str:
    boxes, batches = np.array([[0, 0, 4, 4], [1, 1, 3, 5]], np.float32), np.array([0, 1], np.int64)
    sizes = {"output_height": 3, "output_width": 2, "sampling_ratio": 2}
    return str(net.node("RoiAlign", value, net.constant(boxes), net.constant(batches), **sizes))


def roi_pool(net: Net, value: str) -> str:
    boxes = net.constant(np.array([[0, 0, 0, 4, 4], [1, 1, 1, 3, 5]], np.float32))
    return str(net.node("MaxRoiPool", value, boxes, pooled_shape=[2, 2]))


# The operator in a packed layout -> how it is built on a value of that many spatial dimensions.
ASKED: dict[str, Callable[[Net, str, int], str]] = {
    "MaxPool": lambda n, v, d: n.node("MaxPool", v, kernel_shape=[2] * d, strides=[2] * d),
    "AveragePool": lambda n, v, d: n.node("AveragePool", v, kernel_shape=[3] * d, pads=[1] * 2 * d),
    "LpPool": lambda n, v, d: n.node("LpPool", v, kernel_shape=[2] * d),
    "GlobalAveragePool": lambda n, v, d: n.node("GlobalAveragePool", v),
    "GlobalMaxPool": lambda n, v, d: n.node("GlobalMaxPool", v),
    "GlobalLpPool": lambda n, v, d: n.node("GlobalLpPool", v),
    "Resize": lambda n, v, d: resize(n, v, d, "nearest"),
    "Resize, linear": lambda n, v, d: resize(n, v, d, "linear"),
    "RoiAlign": lambda n, v, d: roi_align(n, v),
    "MaxRoiPool": lambda n, v, d: roi_pool(n, v),
}
PICTURES = {1: ("NCW", (10,)), 2: ("NCHW", (6, 10)), 3: ("NCDHW", (4, 6, 8))}
ASKED_AT = [(what, d) for what in ASKED for d in PICTURES if d == 2 or "Roi" not in what]


def asked(what: str, channels: int, dimensions: int) -> Net:
    net = Net()
    value = net.node("Relu", net.input("x", (2, channels, *PICTURES[dimensions][1])))
    net.output(net.node("Relu", ASKED[what](net, value, dimensions)))
    return net


@pytest.mark.parametrize(("what", "dimensions"), ASKED_AT)
@pytest.mark.parametrize("channels", [8, 4])
def test_a_pool_a_resize_and_a_roi_take_a_packed_layout_also_of_one_tile(
    what: str, dimensions: int, channels: int
) -> None:
    operator, layout = what.partition(",")[0], PICTURES[dimensions][0] + "4c"
    legal, _ = converted(asked(what, channels, dimensions), {operator: [layout]})
    assert layouts(legal, operator) == [{"data_layout": layout}]
    options = {"desired_layouts": {operator: [layout]}}
    twice, report = relayout.legalize(legal, "convert-layout", backend_options=options)
    assert report.before == report.after
    assert layouts(twice, operator) == [{"data_layout": layout}]


@pytest.mark.parametrize("layout", ["NHWC4c", "NHWC8c", "NCHW8c", "NCHW2n", "HWNC4c", "NHCW4c", "NCHW2w", "NCHW2h"])
@pytest.mark.parametrize("what", ["GlobalAveragePool", "Resize", "Resize, linear", "AveragePool"])
def test_any_dimension_is_packed_and_its_parts_may_stand_side_by_side(what: str, layout: str) -> None:
    operator = what.partition(",")[0]
    legal, _ = converted(asked(what, 8, 2), {operator: [layout]})
    # A global pool gives one row and one column, of which there are no pairs.
    divides = operator != "GlobalAveragePool" or layout not in ("NCHW2w", "NCHW2h")
    assert layouts(legal, operator) == ([{"data_layout": layout}] if divides else [{}])


@pytest.mark.parametrize(("what", "dimensions"), ASKED_AT)
def test_a_tensor_that_the_tile_does_not_divide_is_unchanged(what: str, dimensions: int) -> None:
    operator = what.partition(",")[0]
    legal, report = converted(asked(what, 6, dimensions), {operator: [PICTURES[dimensions][0] + "4c"]})
    assert report.after.transposes == 0
    assert [node.domain for node in legal.graph.node] == ["", "", ""]


@pytest.mark.parametrize(("layout", "transposes"), [("NCHW4c", 3), ("NHWC4c", 3), ("NCHW8c", 3), ("NHWC", 3)])
def test_a_pool_in_any_layout_returns_the_source_indices(layout: str, transposes: int) -> None:
    net = Net()
    largest, places = net.node("MaxPool", net.input("x", (2, 8, 6, 10)), results=2, kernel_shape=[2, 3])
    net.output(net.node("Relu", largest))
    net.output(places, onnx.TensorProto.INT64)
    legal, report = converted(net, {"MaxPool": [layout]})
    assert layouts(legal, "MaxPool") == [{"data_layout": layout}]
    assert report.after.transposes == transposes


@pytest.mark.parametrize("operator", ["MaxPool", "MaxUnpool"])
def test_max_pool_and_max_unpool_run_in_a_packed_layout(operator: str) -> None:
    net = Net()
    largest, places = net.node("MaxPool", net.input("x", (2, 4, 6, 10)), results=2, kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.node("MaxUnpool", largest, places, kernel_shape=[2, 2], strides=[2, 2]))
    legal, _ = converted(net, {operator: ["NCHW4c"]})
    assert layouts(legal, operator) == [{"data_layout": "NCHW4c"}]


@pytest.mark.parametrize("name", ["Upsample", "Resize", "nn.upsampling"])
def test_an_upsample_is_a_resize(name: str) -> None:
    net = Net(opset=9)
    value = net.node("Relu", net.input("x", (2, 8, 6, 10)))
    net.output(net.node("Upsample", value, net.constant(np.array([1, 1, 2, 3], np.float32))))
    legal, _ = converted(net, {name: ["NCHW4c"]})
    assert layouts(legal, "Upsample") == [{"data_layout": "NCHW4c"}]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("channels", [4, 8])
def test_a_resize_of_channels_that_come_last_is_packed_by_its_channels(mode: str, channels: int) -> None:
    net = Net()
    scales = net.constant(np.array([1, 2, 3, 1], np.float32))
    net.output(net.node("Resize", net.input("x", (2, 6, 10, channels)), "", scales, mode=mode))
    legal, _ = converted(net, {"Resize": ["NCHW4c"]})
    assert layouts(legal, "Resize") == [{"data_layout": "NCHW4c"}]


def test_a_tower_of_packed_convolutions_pools_and_resizes_has_two_transforms() -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 16, 8, 8)), 16, 16)
    value = net.node("MaxPool", net.node("Relu", value), kernel_shape=[2, 2], strides=[2, 2])
    value = resize(net, net.conv(value, 16, 16), 2, "linear")
    net.output(net.conv(net.node("AveragePool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 16, 16))
    packed = ["NCHW16c"]
    desired = {"Conv": ["NCHW16c", "OIHW16i16o"], "MaxPool": packed, "Resize": packed, "AveragePool": packed}
    legal, report = converted(net, desired)
    assert report.after.transposes == 2
    assert {node.domain for node in legal.graph.node if node.op_type in desired} == {"relayout"}


# Operators between two packed convolutions


def test_a_packed_network_is_left_as_it_is() -> None:
    legal, _ = converted(chain(8), PACKED)
    for backend, options in (("convert-layout", {"desired_layouts": PACKED}), ("onnx", {})):
        twice, report = relayout.legalize(legal, load_backend(backend, options=options))
        assert report.before == report.after
        assert [node.op_type for node in twice.graph.node] == [node.op_type for node in legal.graph.node]


def test_densely_concatenated_features_stay_packed() -> None:
    net = Net()
    value, channels = net.conv(net.input("x", (1, 4, 8, 8)), 4, 8), 8
    for _ in range(4):
        features = net.conv(net.node("Relu", net.node("Mul", value, net.weight(channels, 1, 1))), channels, 4)
        value, channels = net.node("Concat", value, features, axis=1), channels + 4
    net.output(value)
    assert converted(net, PACKED)[1].after.transposes <= 2


@pytest.mark.parametrize("words", [["NCHW4c", "OIHW4o"], ["NCHW16c", "OIHW16i16o"]])
def test_a_packed_network_is_legal_as_it_is(words: list[str]) -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 16, 16, 16)), 16, 32, strides=[2, 2]))
    for _ in range(2):
        branch = net.conv(net.node("Relu", net.conv(value, 32, 32)), 32, 32)
        value = net.node("Relu", net.node("Add", branch, value))
    net.output(net.node("Flatten", net.node("GlobalAveragePool", value)))
    wanted = {"desired_layouts": {"Conv": words}}
    once, _ = relayout.legalize(net.model(), "convert-layout", backend_options=wanted)
    twice, report = relayout.legalize(once, "convert-layout", backend_options=wanted, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


# Shapes that are read of packed values


@pytest.mark.parametrize("bounds", [{}, {"start": 1}, {"end": -1}, {"start": -3, "end": 7}])
def test_reading_a_known_shape_needs_no_unpacking(bounds: dict[str, int]) -> None:
    net = Net()
    value = net.conv(net.input("x", (2, 8, 6, 10)), 8, 8)
    net.output(net.conv(net.node("Relu", value), 8, 8))
    net.output(net.node("Shape", value, **bounds), onnx.TensorProto.INT64)
    legal, report = converted(net, PACKED)
    assert report.after.transposes == 2
    assert report.cost == report.after.bytes
    assert "Shape" not in [node.op_type for node in legal.graph.node]


def test_a_slice_with_bounds_from_a_shape_is_priced_as_written() -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 8, 6, 6)), 8, 8)
    channels = net.node("Gather", net.node("Shape", value), axes(net, 1))
    half = net.node("Div", channels, axes(net, 2))
    part = net.node("Slice", value, axes(net, 0), half, axes(net, 1))
    net.output(net.conv(net.node("Relu", part), 4, 8))
    _, report = converted(net, PACKED)
    assert report.cost == report.after.bytes
    assert len(report.conversions) == report.after.transposes == 2


def test_an_unknown_shape_is_read_from_the_value_in_source_order() -> None:
    net = Net()
    value = net.conv(net.input("x", ("n", 8, 6, 10)), 8, 8)
    net.output(net.conv(net.node("Relu", value), 8, 8))
    net.output(net.node("Shape", value), onnx.TensorProto.INT64)
    legal, report = converted(net, PACKED)
    assert "Shape" in [node.op_type for node in legal.graph.node]
    assert len(report.conversions) == report.after.transposes


# Weights that stay at home


@pytest.mark.parametrize("words", [["NCHW4c", "OIHW4o"], ["NCHW16c", "OIHW16i16o"]])
def test_absent_weights_are_packed_by_their_steps(words: list[str]) -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 16, 6, 6)), 16, 32))
    value = net.node("Mul", net.conv(value, 32, 32), net.weight(32, 1, 1))
    # As exporters of channels-last networks write it.
    net.output(net.node("Conv", value, net.transpose(net.weight(3, 3, 32, 16), 3, 2, 0, 1)))
    model = net.model()
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    graph = to_json(read_model(model))
    for constant in graph["constants"]:
        del constant["data"]
    answer, _ = relayout.legalize(graph, "convert-layout", backend_options={"desired_layouts": {"Conv": words}})
    legal, _ = relayout.legalize(model, "convert-layout", backend_options={"desired_layouts": {"Conv": words}})
    kernels = [node.input[1] for node in legal.graph.node if node.op_type == "Conv"]
    packed = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in legal.graph.initializer}
    convolutions = [node for node in answer["nodes"] if node["op"] == "Conv"]
    constants = {constant["name"]: constant for constant in answer["constants"]}
    for node, expected in zip(convolutions, kernels, strict=True):
        constant = constants[node["inputs"][1]]
        array = stored[constant["name"]]
        for step in constant["transform"]:
            array = apply_step(array, step)
        np.testing.assert_array_equal(array, packed[expected])


# Where packed layouts meet what they cannot have


def test_a_kernel_may_be_packed_without_the_data() -> None:
    desired = {"Conv": ["NCHW", "OIHW4o"]}
    legal, _ = converted(chain(8), desired)
    twice, report = relayout.legalize(legal, "convert-layout", backend_options={"desired_layouts": desired}, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert [node.op_type for node in twice.graph.node] == [node.op_type for node in legal.graph.node]


@pytest.mark.parametrize("operator", ["Conv", "AveragePool"])
def test_packed_operators_are_written_for_old_opsets_too(operator: str) -> None:
    net = Net(opset=8)
    value = net.input("x", (2, 8, 6, 10))
    net.output(net.conv(value, 8, 8) if operator == "Conv" else net.node("AveragePool", value, kernel_shape=[2, 2]))
    words = ["NCHW4c", "OIHW4o"] if operator == "Conv" else ["NCHW4c"]
    legal, _ = converted(net, {operator: words})
    assert read_model(legal).graph.num_nodes() == len(legal.graph.node)


def test_a_packed_image_may_be_a_view_of_a_tensor_of_unknown_extent() -> None:
    net = Net(opset=18)
    picture = net.node("Reshape", net.input("x", ("n",)), axes(net, 1, 2, 1, 2))
    net.output(net.node("Resize", picture, "", "", axes(net, 1, 2, 2, 4), mode="nearest"))
    model = net.model()
    legal, _ = relayout.legalize(model, "convert-layout", backend_options={"desired_layouts": {"Resize": ["NHWC2c"]}})
    assert layouts(legal, "Resize") == [{"data_layout": "NHWC2c"}]
    assert_same_numbers(model, legal, {"x": np.arange(4, dtype=np.float32)})


def test_a_resize_that_the_tile_does_not_divide_has_no_requirement() -> None:
    net = Net(opset=13)
    value = net.transpose(net.input("x", (8, 5, 1, 1)), 0, 3, 1, 2)
    scales = net.constant(np.array([1, 1, 2, 1], np.float32))
    value = net.node("Resize", value, "", scales, mode="nearest")
    net.output(net.transpose(value, 1, 2, 3, 0))
    _, report = converted(net, {"Resize": ["NCHW2c"]})
    assert report.after.transposes <= 1


def test_a_packed_pool_keeps_its_unused_indices() -> None:
    net = Net()
    window = {"kernel_shape": [1, 2], "pads": [0, 0, 0, 1], "strides": [2, 2]}
    pooled, _ = net.node("MaxPool", net.input("x", (4, 2, 5, 6)), results=2, **window)
    net.output(pooled)
    options = {"desired_layouts": {"MaxPool": ["NCHW2c"]}}
    legal, _ = relayout.legalize(net.model(), "convert-layout", backend_options=options)
    (kept,) = [node for node in legal.graph.node if node.op_type == "MaxPool"]
    assert len(kept.output) == 2
    assert_same_numbers(net.model(), legal)


def test_a_packed_convolution_reads_shuffled_channels_in_pairs_of_any_kind() -> None:
    """Which part of the channels is the outer one, the annotation says; its kernel follows."""
    net = Net()
    left, right = net.node("Split", net.input("x", (1, 8, 6, 6)), axis=1, results=2)
    value = net.node("Concat", left, net.node("Relu", net.conv(right, 4, 4)), axis=1)
    value = net.node("Reshape", value, axes(net, 1, 2, 4, 6, 6))
    value = net.node("Reshape", net.transpose(value, 0, 2, 1, 3, 4), axes(net, 1, 8, 6, 6))
    net.output(net.node("Relu", net.conv(value, 8, 4)))
    converted(net, {"Conv": ["NCHW2c", "OIHW2o"]})
