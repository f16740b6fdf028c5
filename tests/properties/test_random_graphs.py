"""Random graphs over the whole operator table, and the small graphs of faults that they found."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fuzzing import check, in_boundary_format, runs
from graphs import Net, assert_same_numbers, random_feeds, run
from legalization_checks import findings_about
from random_graphs import Rejected
from random_patterns import draw_graph, forced_row
from random_settings import draw_settings

from relayout.errors import UsageError
from relayout.legalization import legalize

GRAPHS, CHUNK = 165, 15
"""More than the op table has rows, so that each row's turn comes. `benchmarks/fuzz.py` draws thousands."""


@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_random_legal_graphs_compute_the_same(first: int) -> None:
    drawn, covered = 0, 0
    for seed in range(first, first + CHUNK):
        try:
            graph = draw_graph(seed)
        except Rejected:
            continue
        if not runs(graph):
            continue
        failures = check(graph, draw_settings(graph), deep=seed % CHUNK == 0)
        assert failures == [], f"seed {seed}"
        drawn += 1
        covered += forced_row(seed).operator in {operator for operator, _ in graph.operators}
    assert min(drawn, covered) >= CHUNK - 3


def nodes_of(model: onnx.ModelProto) -> list[bytes]:
    return [node.SerializeToString() for node in model.graph.node]


def assert_stays(legal: onnx.ModelProto, backend: str, **options: object) -> None:
    """Legalizing a legal model changes nothing."""
    twice, report = legalize(legal, backend, **options)  # type: ignore[arg-type]
    assert nodes_of(twice) == nodes_of(legal)
    assert report.before == report.after


def test_an_input_that_is_an_output_keeps_its_name_in_a_layout_of_its_own() -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    net.output(net.node("Relu", image))
    net.outputs.append(net.inputs[0])
    legal, _ = legalize(net.model(), input_layouts={"x": "NHWC"})
    assert [v.name for v in legal.graph.input] == ["x"]
    assert [v.name for v in legal.graph.output] == ["relu_0", "x"]
    with pytest.raises(UsageError, match="cannot be chosen"):
        legalize(net.model(), output_layouts={"x": "NHWC"})


def test_an_output_that_merges_axes_may_have_a_free_layout() -> None:
    """It is read back by what the legal model says of it."""
    net = Net()
    turned = net.transpose(net.node("Relu", net.input("x", (4, 3, 4))), 2, 1, 0)
    net.output(net.node("Reshape", turned, net.constant([48])))
    model = net.model()
    legal, report = legalize(model, output_layouts={"reshape_2": "any"})
    assert (report.status, report.cost, [node.op_type for node in legal.graph.node]) == ("optimal", 0, ["Relu"])
    feeds = random_feeds(model)
    (expected,), (found,) = run(model, feeds), run(legal, feeds)
    np.testing.assert_array_equal(in_boundary_format(legal.graph.output[0], expected), found)


def test_the_function_of_a_pool_has_no_unused_indices() -> None:
    net = Net()
    pooled, _ = net.node("MaxPool", net.input("x", (1, 2, 6, 6)), results=2, kernel_shape=[2, 2])
    net.output(pooled)
    legal, _ = legalize(net.model(), "nhwc")
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("operator", ["BatchNormalization", "GlobalMaxPool", "LRN", "MaxPool"])
@pytest.mark.parametrize("backend", ["onnx", "nchw"])
def test_a_relaid_node_returns_to_onnxs_operator(operator: str, backend: str) -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    attributes = {"LRN": {"size": 3}, "MaxPool": {"kernel_shape": [2, 2]}}.get(operator, {})
    count = 4 if operator == "BatchNormalization" else 0
    vectors = [net.constant(np.full(3, i + 1, np.float32)) for i in range(count)]
    net.output(net.node(operator, image, *vectors, **attributes))
    there, _ = legalize(net.model(), "nhwc")
    assert {n.domain for n in there.graph.node if n.op_type == operator} == {"relayout"}
    back, report = legalize(there, backend)
    assert report.after.transposes == 0
    assert_same_numbers(net.model(), back)


@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 1, 1]])
def test_a_resize_states_its_layout_once(scales: list[int]) -> None:
    net = Net()
    image = net.input("x", (2, 3, 4, 1))
    resized = net.node("Resize", image, "", net.constant(np.array(scales, np.float32)), mode="nearest")
    net.output(net.node("Relu", resized))
    legal, _ = legalize(net.model(), "nhwc")
    assert_same_numbers(net.model(), legal)
    assert_stays(legal, "nhwc")


def test_a_transpose_of_a_constant_does_not_change_the_graph() -> None:
    net = Net()
    scale = net.transpose(net.weight(3, 4), 1, 0)
    net.output(net.node("Reshape", net.node("MatMul", net.input("x", (2, 4)), scale), net.constant([2, 3, 1])))
    legal, _ = legalize(net.model())
    assert_stays(legal, "onnx")


def test_a_result_of_uninferred_rank_has_the_required_layout() -> None:
    net = Net()
    net.output(net.node("ConvTranspose", net.input("x", (1, 2, 3, 4)), net.input("w", (2, 3, "k", 1))))
    legal, report = legalize(net.model(), "nhwc")
    assert {n.domain for n in legal.graph.node if n.op_type == "ConvTranspose"} == {"relayout"}
    assert report.after.transposes == 3


def test_an_unused_node_has_no_requirements() -> None:
    net = Net()
    image = net.input("x", (1, 3, 4, 5))
    net.conv(image, 3, 2)
    net.output(net.node("Relu", image))
    _legal, report = legalize(net.model(), "nhwc")
    assert (report.cost, report.after.transposes) == (0, 0)


def test_a_symbolic_batch_is_priced_as_1_at_any_dimension() -> None:
    net = Net()
    net.output(net.node("Relu", net.transpose(net.input("x", ("n", 3, "h", 4)), 1, 0, 2, 3)))
    legal, report = legalize(net.model(), input_layouts={"x": "HWCN"}, output_layouts={"relu_1": "NCHW"})
    assert report.after.bytes == report.cost
    assert_stays(legal, "onnx")


def test_an_axis_with_two_names_is_annotated_with_neither() -> None:
    net = Net()
    image = net.node("Relu", net.input("x", (2, 3, 4, 5)))
    net.output(net.node("LpPool", net.transpose(image, 0, 3, 1, 2), kernel_shape=[2, 2]))
    net.output(net.node("MaxPool", net.transpose(image, 0, 2, 1, 3), kernel_shape=[2, 2]))
    legal, _ = legalize(net.model())
    values = (*legal.graph.value_info, *legal.graph.output)
    told = {entry.key for value in values for entry in value.metadata_props}
    assert told <= {"relayout.order"}
    assert_same_numbers(net.model(), legal)


def resized(mode: str, scales: list[float], **attributes: object) -> Net:
    net = Net()
    image = net.node("Relu", net.input("x", (2, 3, 4, 5)))
    made = net.node("Resize", image, "", net.constant(np.array(scales, np.float32)), mode=mode, **attributes)
    net.output(net.node("Sigmoid", made))
    return net


RESIZED = [
    *(("nearest", each) for each in ([1, 1, 2, 2], [1, 2, 2, 1], [1, 2, 1, 1], [2, 1, 1, 1])),
    *(("nearest", each) for each in ([1, 1, 1, 1], [1, 2, 2, 2])),
    *(("linear", each) for each in ([1, 1, 2, 2], [1, 2, 2, 1], [1, 2, 1, 1], [1, 1, 1, 1])),
    *(("cubic", each) for each in ([1, 1, 2, 2], [1, 1, 1, 1])),
]


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "nchw", "auto-nhwc", "canonical", "opencl"])
@pytest.mark.parametrize(("mode", "scales"), RESIZED)
def test_a_resize_of_any_axes_can_be_run(mode: str, scales: list[float], backend: str) -> None:
    model = resized(mode, scales).model()
    legal, report = legalize(model, backend, check=True)
    assert report.status == "optimal"
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(model, legal)
    assert_stays(legal, backend)


def test_a_resize_of_the_middle_dimensions_is_channels_last() -> None:
    model = resized("nearest", [1, 2, 2, 1]).model()
    legal, report = legalize(model, "nhwc")
    assert report.after.transposes == 0
    assert [node.op_type for node in legal.graph.node] == [node.op_type for node in model.graph.node]
    assert {node.domain for node in legal.graph.node} == {""}
    assert legalize(model, "nchw")[1].after.transposes == 2


@pytest.mark.parametrize("backend", ["nhwc", "nchw", "auto-nhwc"])
def test_a_resize_may_have_neighbours_with_other_axis_names(backend: str) -> None:
    net = Net()
    image = net.node("LpPool", net.input("x", (2, 3, 4, 5)), kernel_shape=[1, 1])
    made = net.node("Resize", image, "", net.constant(np.array([1, 2, 1, 1], np.float32)), mode="nearest")
    turned = net.transpose(made, 0, 3, 1, 2)
    net.output(net.node("MaxPool", turned, kernel_shape=[2, 2]))
    legal, report = legalize(net.model(), backend, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(net.model(), legal)


def test_a_batch_norm_of_unknown_channels_is_unchanged() -> None:
    net = Net()
    image = net.transpose(net.input("x", (2, 3, 4, "c")), 0, 3, 1, 2)
    vectors = [net.weight(3), net.weight(3), net.weight(3), net.constant(np.ones(3, np.float32))]
    normed = net.node("BatchNormalization", image, *vectors)
    net.output(net.transpose(normed, 0, 2, 3, 1))
    legal, _ = legalize(net.model())
    assert_same_numbers(net.model(), legal)


def test_unnamed_unit_axes_satisfy_any_position() -> None:
    """The column is rows for one reader and a batch for the other; the place that is found in it is nothing's."""
    net = Net()
    image = net.input("x", (1, 1, 4, 1))
    net.output(net.node("ArgMax", image, axis=2), onnx.TensorProto.INT64)
    net.output(net.node("MaxPool", net.node("Relu", image), kernel_shape=[2, 1]))
    batch = net.node("Reshape", image, net.constant([4, 1, 1, 1]))
    net.output(net.node("MaxPool", batch, kernel_shape=[1, 1]))
    legal, report = legalize(net.model(), "canonical", check=True)
    assert report.verification is not None
    assert findings_about(report.verification) == []
    assert_same_numbers(net.model(), legal)
    assert_stays(legal, "canonical")


def test_a_resize_with_a_layout_does_not_rename_axes_of_an_equal_resize() -> None:
    """The node before it is left out in the legal model, and with it the names that it gave."""
    net = Net()
    blocks = net.node("DepthToSpace", net.input("x", (1, 4, 1, 6)), blocksize=2, mode="CRD")
    image = net.transpose(blocks, 0, 2, 3, 1)
    resized = net.node("Resize", image, "", "", net.constant([1, 2, 13, 2]), mode="nearest")
    net.output(net.node("Concat", resized, resized, axis=2))
    legal, report = legalize(net.model(), "nhwc", check=True)
    assert "DepthToSpace" not in {node.op_type for node in legal.graph.node}
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("backend", ["nhwc", "auto-nhwc", "onnx"])
def test_data_of_unknown_rank_have_the_rank_of_the_result(backend: str) -> None:
    net = Net()
    boxes = net.constant(np.array([[0, 0, 3, 3], [1, 1, 2, 3]], np.float32))
    image = net.input("x", (2, 3, 4, 5))
    net.inputs[0].type.tensor_type.ClearField("shape")
    picked = net.node("RoiAlign", image, boxes, net.constant([0, 1]), output_height=2, output_width=2)
    net.output(net.transpose(picked, 0, 2, 3, 1))
    legal, _ = legalize(net.model(), backend)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    assert_same_numbers(net.model(), legal, feeds)
    assert_stays(legal, backend)


def test_a_value_without_a_type_has_no_rank() -> None:
    """Of what an operator of another domain gives onnx infers nothing."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[1,2,4,5] x, float[3,2,1,1] w) => (float[1,3,4,5] y) {
            g = com.microsoft.SampleOp (x)
            y = Conv (g, w)
        }""")
    legal, _ = legalize(model)
    assert_same_numbers(model, legal)
    assert_stays(legal, "onnx")


def test_two_axes_of_unknown_extent_are_not_merged() -> None:
    net = Net()
    rows = net.transpose(net.input("x", (5, "a", "b")), 2, 1, 0)
    net.output(net.node("Flatten", net.node("MatMul", rows, net.weight(5, 3)), axis=1))
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 2, 4)).astype(np.float32)}
    legal, _ = legalize(net.model())
    assert_same_numbers(net.model(), legal, feeds)


@pytest.mark.parametrize("opset", [11, 13])
def test_an_axis_of_unknown_extent_is_squeezed_in_any_order(opset: int) -> None:
    net = Net(opset)
    image = net.transpose(net.input("x", ("n", 4, 5, "one")), 0, 2, 3, 1)
    axes = {"inputs": (image,), "axes": [2]} if opset < 13 else {"inputs": (image, net.constant([2]))}
    squeezed = net.node("Squeeze", *axes.pop("inputs"), **axes)
    net.output(net.transpose(squeezed, 0, 2, 1))
    legal, report = legalize(net.model())
    assert report.after.transposes == 0
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 5, 1)).astype(np.float32)}
    assert_same_numbers(net.model(), legal, feeds)
    assert_stays(legal, "onnx")


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
def test_a_backend_may_require_either_name_of_an_axis(backend: str) -> None:
    """One reader of the picture calls its last axis channels, what follows the other one calls them columns."""
    net = Net()
    image = net.input("x", (2, 4, 3, 5))
    net.output(net.conv(image, 4, 6))
    soft = net.node("LogSoftmax", net.transpose(image, 0, 2, 3, 1), axis=1)
    net.output(net.conv(net.node("Relu", soft), 3, 2))
    legal, report = legalize(net.model(), backend, check=True)
    assert report.verification is not None
    assert findings_about(report.verification) == []
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
def test_a_slice_of_an_axis_keeps_its_name(backend: str) -> None:
    net = Net()
    image = net.transpose(net.node("AveragePool", net.input("x", (2, 1, 6, 3)), kernel_shape=[3, 1]), 0, 2, 3, 1)
    picked = net.node("Compress", image, net.constant(np.array([True, False, True, True])), axis=1)
    net.output(net.node("LogSoftmax", picked))
    net.output(net.conv(net.node("Relu", picked), 3, 2))
    legal, report = legalize(net.model(), backend, check=True)
    assert report.verification is not None
    assert findings_about(report.verification) == []
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("opset", [7, 8])
@pytest.mark.parametrize("backend", ["onnx", "canonical", "nhwc", "opencl", "x86-nchwc"])
@pytest.mark.parametrize("perm", [(0, 3, 1, 2), (0, 1, 3, 2)])
def test_a_normalization_by_parameters_for_each_place_stays_in_its_order(
    opset: int, backend: str, perm: tuple[int, ...]
) -> None:
    net = Net(opset)
    image = net.transpose(net.input("x", (2, 4, 4, 4)), *perm)
    parameters = [net.weight(4, 4, 4) for _ in range(3)]
    parameters.append(net.constant(np.linspace(1, 2, 64, dtype=np.float32).reshape(4, 4, 4)))
    normed = net.node("BatchNormalization", image, *parameters, spatial=0)
    net.output(net.transpose(normed, *np.argsort(perm).tolist()))
    model = net.model()
    legal, report = legalize(model, backend, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
def test_replaceable_parameters_are_not_folded(backend: str) -> None:
    net = Net()
    image = net.transpose(net.input("x", (2, 4, 5, 3)), 0, 3, 1, 2)
    parameters = [net.constant(np.full(3, i + 1, np.float32)) for i in range(4)]
    net.output(net.transpose(net.node("BatchNormalization", image, *parameters), 0, 2, 3, 1))
    model = net.model()
    for name in parameters:
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]))
    legal, _ = legalize(model, backend)
    feeds = random_feeds(net.model())
    assert_same_numbers(model, legal, feeds)
    assert_same_numbers(model, legal, {**feeds, parameters[0]: np.array([3, 4, 5], np.float32)})
