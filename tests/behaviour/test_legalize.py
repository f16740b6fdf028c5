"""`legalize` finds the known minimum of small networks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers, run
from legalization_checks import checked, operators
from model_files import parse

from relayout.backend import load_backend
from relayout.errors import InfeasibleError, InputError, UsageError
from relayout.legalization import legalize
from relayout.verification.verifier import verify

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def nhwc_conv(net: Net, value: str, inputs: int, outputs: int) -> str:
    """A convolution as an exporter wraps it whose framework is channels-last."""
    return net.transpose(net.conv(net.transpose(value, *TO_NCHW), inputs, outputs), *TO_NHWC)


def test_inverse_transposes_around_a_model_vanish() -> None:
    net = Net()
    value = net.transpose(net.transpose(net.input("x", (2, 3, 8, 8)), *TO_NHWC), *TO_NCHW)
    value = net.node("Relu", net.conv(value, 3, 4))
    net.output(net.transpose(net.transpose(value, *TO_NHWC), *TO_NCHW))
    legal, report = legalize(net.model())
    assert (report.status, report.cost, report.after.transposes) == ("optimal", 0, 0)
    assert [node.op_type for node in legal.graph.node] == ["Conv", "Relu"]
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("blocks", [1, 2, 5, 40])
def test_a_residual_chain_whose_first_skip_is_the_raw_input_keeps_two(blocks: int) -> None:
    net = Net()
    value = net.input("x", (1, 6, 6, 4))
    for _ in range(blocks):
        value = net.node("Add", value, nhwc_conv(net, value, 4, 4))
    net.output(value)
    legal, report = legalize(net.model())
    assert report.before.transposes == 2 * blocks
    assert report.after.transposes == 2
    if blocks < 10:
        assert_same_numbers(net.model(), legal)


def test_a_raw_input_added_after_every_convolution_is_transposed_once() -> None:
    net = Net()
    raw = net.input("x", (1, 6, 6, 4))
    value = raw
    for _ in range(5):
        value = net.node("Add", nhwc_conv(net, value, 4, 4), raw)
    net.output(value)
    legal, report = legalize(net.model())
    assert report.after.transposes == 2
    assert_same_numbers(net.model(), legal)


def test_a_vector_that_scales_channels_becomes_a_view_and_no_transpose() -> None:
    net = Net()
    image, scale = net.input("x", (2, 3, 8, 8)), net.input("scale", ("C",))
    value = net.transpose(net.conv(image, 3, 5), *TO_NHWC)
    value = net.transpose(net.node("Mul", value, scale), *TO_NCHW)
    net.output(net.conv(value, 5, 5))
    model = net.model()
    legal, report = legalize(model)
    assert report.after.transposes == 0
    feeds = {
        "x": np.random.default_rng(0).standard_normal((2, 3, 8, 8), np.float32),
        "scale": np.arange(5, dtype=np.float32),
    }
    assert_same_numbers(model, legal, feeds)


def test_squeeze_and_excite_needs_no_transpose() -> None:
    net = Net()
    value = net.transpose(net.conv(net.input("x", (2, 3, 8, 8)), 3, 6), *TO_NHWC)
    pooled = net.node("ReduceMean", value, axes=[1, 2], keepdims=0)
    gate = net.node("Sigmoid", net.node("MatMul", pooled, net.weight(6, 6)))
    gate = net.node("Reshape", gate, net.constant([-1, 1, 1, 6]))
    value = net.transpose(net.node("Mul", value, gate), *TO_NCHW)
    net.output(net.conv(value, 6, 2))
    legal, report = legalize(net.model())
    assert report.after.transposes == 0
    assert_same_numbers(net.model(), legal)


def test_one_pinned_reader_does_not_block_the_others() -> None:
    net = Net()
    value = net.transpose(net.conv(net.input("x", (1, 3, 8, 8)), 3, 4), *TO_NHWC)
    net.output(value)
    for _ in range(3):
        value = net.node("Relu", nhwc_conv(net, value, 4, 4))
    net.output(value)
    legal, report = legalize(net.model())
    assert report.after.transposes == 2
    assert_same_numbers(net.model(), legal)


def test_a_transpose_goes_where_the_tensor_is_small() -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 3, 8, 8)), 3, 4)
    value = net.node("Resize", value, "", net.constant(np.array([1, 1, 4, 4], np.float32)), mode="nearest")
    net.output(net.transpose(value, *TO_NHWC))
    legal, report = legalize(net.model())
    assert report.after.transposes == 1
    assert report.after.bytes * 16 == report.before.bytes
    assert_same_numbers(net.model(), legal)


def test_a_transpose_of_unit_axes_costs_nothing() -> None:
    net = Net()
    value = net.node("GlobalAveragePool", net.conv(net.input("x", (1, 3, 8, 8)), 3, 4))
    net.output(net.transpose(value, *TO_NHWC))
    legal, report = legalize(net.model())
    assert report.after.transposes == 0
    assert_same_numbers(net.model(), legal)


def test_flatten_into_gemm_permutes_the_constant_rows_or_moves_nothing_more() -> None:
    net = Net()
    value = net.transpose(net.conv(net.input("x", (2, 3, 4, 4)), 3, 5), *TO_NHWC)
    value = net.node("Relu", net.transpose(value, *TO_NCHW))
    net.output(net.node("Gemm", net.node("Flatten", value), net.weight(80, 7), net.weight(7)))
    legal, report = legalize(net.model())
    assert report.after.transposes == 0
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "nchw"])
def test_legalizing_a_legal_model_changes_nothing(backend: str) -> None:
    net = Net()
    value = net.input("x", (1, 6, 6, 4))
    for _ in range(3):
        value = net.node("Relu", net.node("Add", value, nhwc_conv(net, value, 4, 4)))
    net.output(value)
    once, _ = legalize(net.model(), backend)
    twice, report = legalize(once, backend)
    assert report.before == report.after
    assert [n.SerializeToString() for n in twice.graph.node] == [n.SerializeToString() for n in once.graph.node]


def test_the_same_input_gives_the_same_output() -> None:
    net = Net()
    value = net.input("x", (1, 6, 6, 4))
    for _ in range(4):
        value = net.node("Add", value, nhwc_conv(net, value, 4, 4))
    net.output(value)
    first, second = (legalize(net.model(), "nhwc")[0].SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_channels_last_keeps_one_transpose_in_and_one_out() -> None:
    net = Net()
    value = net.input("x", (1, 3, 8, 8))
    for channels in (3, 8, 8):
        value = net.node("Relu", net.conv(value, channels, 8))
    net.output(net.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2]))
    legal, report = legalize(net.model(), "nhwc")
    assert report.after.transposes == 2
    convolutions = [n for n in legal.graph.node if n.op_type == "Conv"]
    assert {n.domain for n in convolutions} == {"relayout"}
    assert {a.s for n in convolutions for a in n.attribute if a.name == "data_layout"} == {b"NHWC"}
    assert_same_numbers(net.model(), legal)


def test_the_callers_model_is_unchanged() -> None:
    net = Net()
    net.output(nhwc_conv(net, net.input("x", (1, 8, 8, 3)), 3, 4))
    model = net.model()
    before = model.SerializeToString(deterministic=True)
    legalize(model, "nhwc")
    assert model.SerializeToString(deterministic=True) == before


def test_an_input_can_arrive_in_another_layout() -> None:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input("x", (2, 3, 8, 6)), 3, 4)))
    model = net.model()
    legal, report = legalize(model, input_layouts={"x": "NHWC"}, output_layouts={net.outputs[0].name: "NHWC"})
    assert [d.dim_value for d in legal.graph.input[0].type.tensor_type.shape.dim] == [2, 8, 6, 3]
    assert [d.dim_value for d in legal.graph.output[0].type.tensor_type.shape.dim] == [2, 8, 6, 4]
    assert report.after.transposes == 2
    onnx.checker.check_model(legal, full_check=True)


def test_the_solver_chooses_the_layout_of_a_free_input() -> None:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input("x", (2, 3, 8, 6)), 3, 4)))
    legal, report = legalize(
        net.model(), "nhwc", input_layouts={"x": "any"}, output_layouts={net.outputs[0].name: "any"}
    )
    assert report.after.transposes == 0
    assert [d.dim_value for d in legal.graph.input[0].type.tensor_type.shape.dim] == [2, 8, 6, 3]


def test_a_layout_that_does_not_fit_is_an_error() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (2, 3, 8, 6)), 3, 4))
    with pytest.raises(UsageError, match="does not fit"):
        legalize(net.model(), input_layouts={"x": "NHW"})
    with pytest.raises(UsageError, match="no input of this name"):
        legalize(net.model(), input_layouts={"y": "NHWC"})


def test_a_requirement_for_a_black_box_is_never_ignored() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (2, 3, 8, 6)), 3, 4))
    table = {"name": "boxed", "rule": [{"op": "Conv", "data": "N[acme:x]CHW"}]}
    with pytest.raises(InfeasibleError) as caught:
        legalize(net.model(), table)
    assert "N[acme:x]CHW" in str(caught.value)


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
def test_the_branches_of_an_if_are_legalized_and_read_what_they_capture(backend: str) -> None:
    net = Net()
    image, flag = net.input("x", (1, 6, 6, 4)), net.input("flag", (), onnx.TensorProto.BOOL)
    outer = nhwc_conv(net, image, 4, 4)
    inner = Net(seed=1, prefix="inner_")
    value = nhwc_conv(inner, inner.node("Relu", nhwc_conv(inner, outer, 4, 4)), 4, 4)
    result, other = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 6, 6, 4)) for name in (value, "other")
    )
    then = onnx.helper.make_graph(inner.nodes, "then", [], [result], inner.constants)
    plain = onnx.helper.make_node("Identity", [outer], ["other"])
    otherwise = onnx.helper.make_graph([plain], "else", [], [other])
    net.output(net.node("Relu", net.node("If", flag, then_branch=then, else_branch=otherwise)))
    model = net.model()
    legal, report = legalize(model, backend)
    assert report.before.transposes == 6
    # All but the first and the last are between the graph and its branch.
    assert report.after.transposes == (2 if backend == "onnx" else 0)
    x = np.random.default_rng(0).standard_normal((1, 6, 6, 4), np.float32)
    for choice in (True, False):
        assert_same_numbers(model, legal, {"x": x, "flag": np.array(choice)})


def test_a_model_legalized_twice_annotates_values_relative_to_the_first_source() -> None:
    net = Net()
    value = net.input("x", (2, 3, 8, 6))
    for channels in (3, 4):
        value = net.node("Relu", net.conv(value, channels, 4))
    net.output(value)
    last, _ = legalize(net.model(), "nhwc")
    first, report = legalize(last, "nchw")
    assert report.after.transposes == 0
    assert not [p for v in first.graph.value_info for p in v.metadata_props if p.key == "relayout.order"]
    assert_same_numbers(net.model(), first)


@pytest.mark.parametrize("extents", [(1, 4, 6, 8), (1, 5, 5, 5)])
def test_a_value_that_lost_its_name_to_an_output_records_its_source_name(extents: tuple[int, ...]) -> None:
    """Laid channels last the convolution gives the output itself; laid back, its result is the output's in an order."""
    net = Net()
    channels = extents[1]
    value = net.transpose(net.conv(net.input("x", extents), channels, channels), 0, 2, 3, 1)
    net.output(value)
    model = net.model()
    once, _ = legalize(model, "nhwc")
    twice, _ = legalize(once, "onnx")
    (told,) = [{p.key: p.value for p in v.metadata_props} for v in twice.graph.value_info if v.metadata_props]
    assert (told["relayout.source"], told["relayout.order"]) == (value, "0,3,1,2")
    assert verify(twice, "onnx", against=model).findings == ()
    back, _ = legalize(twice, "nhwc")
    assert verify(back, "nhwc", against=model).findings == ()
    assert not any(p.key == "relayout.source" for p in back.graph.output[0].metadata_props)
    for entry in twice.graph.value_info:
        for fact in entry.metadata_props:
            if fact.key == "relayout.order":
                fact.value = "0,2,1,3"
    assert not verify(twice, "onnx", against=model).passed


def test_an_output_that_views_a_relaid_value_is_annotated_as_in_the_source() -> None:
    net = Net()
    value = net.node("Relu", net.transpose(net.input("x", (1, 6, 4)), 0, 2, 1))
    net.output(net.transpose(value, 0, 2, 1))
    legal, report = legalize(net.model(), check=True)
    assert report.after.transposes == 0
    assert report.verification is not None
    assert report.verification.findings == ()
    assert not legal.graph.output[0].metadata_props


@pytest.mark.parametrize("backend", ["onnx", "nchw", "nhwc"])
def test_a_relaid_operator_in_the_source_needs_no_body_and_no_shapes(backend: str) -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20, "relayout" : 1]>
        n (float[1,8,8,3] x, float[3,3,3,4] w) => (float[1,6,6,4] y) {
            a = relayout.Conv <data_layout="NHWC", kernel_layout="HWIO"> (x, w)
            y = Relu (a) }"""
    )
    legal, report = legalize(source, backend)
    assert report.after.transposes == (0 if backend == "nhwc" else 3)
    onnx.checker.check_model(legal, full_check=True)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((1, 8, 8, 3), (3, 3, 3, 4)))
    plain = Net()
    value = plain.transpose(plain.input("x", (1, 8, 8, 3)), *TO_NCHW)
    value = plain.node("Conv", value, plain.constant(w.transpose(3, 2, 0, 1)))
    plain.output(plain.node("Relu", plain.transpose(value, *TO_NHWC)))
    (expected,), (found,) = run(plain.model(), {"x": x}), run(legal, {"x": x, "w": w})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_layout_that_an_operator_cannot_have_is_an_error() -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20, "relayout" : 1]>
        n (float[1,8,8,3] x, float[3,3,3,4] w) => (float[1,6,6,4] y) {
            y = relayout.Conv <data_layout="NHQC", kernel_layout="HWIO"> (x, w) }"""
    )
    with pytest.raises(InputError, match="does not fit"):
        legalize(source)


def test_a_product_with_a_constant_is_transposed_for_channels_first_data() -> None:
    net = Net()
    value = net.node("Conv", net.input("x", (1, 8, 20)), net.weight(8, 8, 3), pads=[1, 1])
    value = net.node("MatMul", net.transpose(value, 0, 2, 1), net.weight(8, 12))
    value = net.transpose(net.node("Add", value, net.weight(12)), 0, 2, 1)
    net.output(net.node("Conv", value, net.weight(5, 12, 3)))
    legal, report = legalize(net.model())
    assert (report.status, report.cost, report.after.transposes) == ("optimal", 0, 0)
    assert [node.op_type for node in legal.graph.node] == ["Conv", "MatMul", "Add", "Conv"]
    assert_same_numbers(net.model(), legal)


def test_a_matrix_broadcast_over_a_batch_is_priced_once_per_batch_element() -> None:
    net = Net()
    value = net.node("MatMul", net.transpose(net.input("x", (3, 8, 20)), 0, 2, 1), net.weight(8, 12))
    net.output(net.transpose(value, 0, 2, 1))
    _, report = legalize(net.model())
    assert (report.after.transposes, report.cost) == (0, 2 * 8 * 12 * 4)


def shuffled() -> Net:
    """Channels that are shuffled, then split between a convolution and what passes it by."""
    net = Net()
    value = net.conv(net.input("x", (1, 6, 5, 5)), 6, 8)
    value = net.node("Reshape", value, net.constant(np.array([1, 2, 4, 5, 5])))
    value = net.node("Transpose", value, perm=[0, 2, 1, 3, 4])
    value = net.node("Reshape", value, net.constant(np.array([1, 8, 5, 5])))
    one, two = net.node("Split", value, results=2, axis=1)
    net.output(net.conv(value, 8, 4))
    net.output(net.node("Concat", one, net.conv(two, 4, 4, kernel=1), axis=1))
    return net


@pytest.mark.parametrize("backend", ["opencl", "canonical", "nchw", "nhwc", "auto-nhwc", "tpu", "xla-cpu"])
def test_the_operators_of_a_decomposition_have_the_layouts_that_the_backend_requires(backend: str) -> None:
    """A Split of shuffled channels may be written as Gathers, of which `opencl` has wishes of its own."""
    legal, report = legalize(shuffled().model(), backend, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(shuffled().model(), legal)


def test_one_format_required_of_all_results_of_a_split_is_made_once_before_it() -> None:
    net = Net()
    whole = net.node("Softmax", net.input("x", (1, 8, 4, 4)), axis=2)
    for part in net.node("Split", whole, net.constant(np.array([2, 2, 3, 1])), axis=1, results=4):
        net.output(net.transpose(part, 0, 2, 3, 1))
    model = net.model()
    legal, report = checked(model, "onnx", objective="transposes")
    assert operators(legal) == ["Softmax", "Transpose", "Split"]
    assert (report.cost, report.after.transposes) == (1, 1)
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("indices", [(10,), (5, 2), (1, 10), (2, 5, 1)])
def test_the_data_of_a_gather_that_lengthens_is_converted_before_it(indices: tuple[int, ...]) -> None:
    net = Net()
    whole = net.node("Softmax", net.input("x", (2, 4, 8, 4)), axis=3)
    index = net.constant(np.arange(10).reshape(indices) % 8)
    gathered = net.node("Gather", whole, index, axis=2)
    rank = 3 + len(indices)
    net.output(net.transpose(gathered, 0, *range(2, rank), 1))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert operators(legal) == ["Softmax", "Transpose", "Gather"]
    assert report.cost == 2 * 4 * 2 * 4 * 8 * 4
    assert_same_numbers(model, legal)


def test_a_channel_shuffle_is_folded_into_the_kernels_after_it() -> None:
    net = shuffled()
    legal, report = legalize(net.model())
    assert (report.status, report.cost, report.after.transposes) == ("optimal", 0, 0)
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("batch", [2, "n"])
def test_an_image_that_is_normalized_by_groups_is_so_channels_last(batch: int | str, groups: int) -> None:
    """A GroupNorm as exporters write it before opset 21. Two groups split the channels, which the kernels reorder."""
    net = Net(opset=18)
    value = skip = net.conv(net.input("x", (batch, 4, 6, 5)), 4, 8)
    value = net.node("Reshape", value, net.constant(np.array([0, groups, -1])))
    value = net.node("InstanceNormalization", value, net.weight(groups), net.weight(groups))
    value = net.node("Mul", net.node("Reshape", value, net.constant(np.array([0, 8, 6, 5]))), net.weight(8, 1, 1))
    net.output(net.conv(net.node("Add", value, skip), 8, 4))
    model = net.model()
    legal, report = checked(model, "nhwc")
    assert report.after.transposes == 2
    assert_same_numbers(model, legal)


def test_an_order_is_combined_from_the_formats_of_several_operands() -> None:
    net = Net()
    value = net.transpose(net.input("x", (6, 3)), 1, 0)
    net.output(net.node("Einsum", value, net.weight(6, 4), equation="nc,ck->nk"))
    legal, report = legalize(net.model())
    assert (report.cost, [node.op_type for node in legal.graph.node]) == (0, ["Einsum"])
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("perm", [(0, 1, 3, 2), (0, 2, 1, 3), (0, 3, 2, 1)])
@pytest.mark.parametrize("backend", ["canonical", "opencl"])
def test_two_axes_with_one_name_are_unknown_and_the_others_are_known(perm: tuple[int, ...], backend: str) -> None:
    """A picture is averaged with itself turned: which axes are rows nobody can say, but the channels are known."""
    net = Net()
    value = net.conv(net.input("x", ("N", 4, 4, 4)), 4, 4)
    mean = net.node("Mean", net.transpose(value, *perm), value, value)
    net.output(net.node("Gather", mean, net.constant([0, 1]), axis=1))
    legal, _ = legalize(net.model(), backend)
    assert verify(legal, backend=backend).findings == ()
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 4, 4)).astype(np.float32)}
    np.testing.assert_allclose(run(legal, feeds)[0], run(net.model(), feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["nhwc", "opencl", "convert-layout", "x86-nchwc"])
def test_a_pool_keeps_its_unused_indices(backend: str) -> None:
    """onnxruntime's kernel without indices refuses this window, which reaches less far than its steps go."""
    net = Net()
    data = net.transpose(net.input("x", (2, 6, 4, 8)), *TO_NCHW)
    pooled, _ = net.node("MaxPool", data, results=2, kernel_shape=[1, 1], strides=[2, 1], auto_pad="SAME_UPPER")
    net.output(net.transpose(pooled, *TO_NHWC))
    legal, _ = legalize(net.model(), backend)
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
def test_a_unit_dimension_moves_where_another_is_empty_at_run_time(backend: str) -> None:
    net = Net(opset=20)
    moved = net.transpose(net.input("x", ("N", 1, "H", "W")), 0, 2, 1, 3)
    net.output(net.node("Softmax", moved))
    model = net.model()
    legal, report = legalize(model, backend)
    assert report.after.transposes == 0
    for shape in [(0, 1, 3, 4), (2, 1, 0, 4), (2, 1, 3, 0), (2, 1, 3, 4)]:
        assert_same_numbers(model, legal, {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)})
    again, _ = legalize(legal, backend)
    assert [node.op_type for node in again.graph.node] == [node.op_type for node in legal.graph.node]


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("shape", [(1, 0, 3, 6), (1, 0, "M", 6)])
def test_a_matrix_without_elements_is_reshaped(shape: tuple[int | str, ...], opset: int) -> None:
    net = Net(opset=opset)
    product = net.node("MatMul", net.transpose(net.input("x", shape), *TO_NHWC), net.weight(0, 2))
    net.output(net.transpose(product, *TO_NCHW))
    legal, report = legalize(net.model())
    assert (report.cost, "Reshape" in operators(legal)) == (0, True)
    sizes = [extent if isinstance(extent, int) else 4 for extent in shape]
    assert_same_numbers(net.model(), legal, {"x": np.ones(sizes, np.float32)})
    found = verify(legal, against=net.model(), run=False).findings
    assert [(each.severity, each.found) for each in found] == [("note", "MatMul")]


@pytest.mark.parametrize("shape", [("N", 4, "H", "W"), (1, 4, 0, 1)])
def test_no_extent_of_0_copies_a_dimension(shape: tuple[int | str, ...]) -> None:
    blocked = load_backend({"name": "blocked", "rule": [{"op": "Conv", "data": "NCHWc[tile:4]", "kernel": "OIHW"}]})
    net = Net(opset=17)
    net.output(net.node("Conv", net.input("x", shape), net.weight(4, 4, 3, 3), pads=[2, 2, 2, 2]))
    legal, _ = legalize(net.model(), blocked)
    for sizes in [(1, 4, 0, 1), *[(2, 4, 3, 4), (2, 4, 0, 4), (0, 4, 3, 4), (2, 4, 4, 0)] * ("N" in shape)]:
        assert_same_numbers(net.model(), legal, {"x": np.ones(sizes, np.float32)})
    assert verify(legal, blocked, against=net.model(), run=False).findings == ()


def test_the_shape_of_an_elided_tensor_is_computed_at_run_time() -> None:
    net = Net()
    net.output(net.node("Shape", net.input("x", (1 << 62, 8))), onnx.TensorProto.INT64)
    legal, _ = legalize(net.model())
    assert [node.op_type for node in legal.graph.node] == ["Shape"]


def test_an_output_s_own_name_for_a_dim_behind_a_transpose_and_a_squeeze_has_a_size() -> None:
    source = parse(
        """g (float[2,?,h,1] x) => (float[2,m] y) {
            t = Transpose <perm = [0, 2, 1, 3]> (x)
            y = Squeeze <axes = [2, 3]> (x)
        }""",
        opset=8,
    )
    assert legalize(source, "onnx")[1].status == "optimal"


def test_a_cast_to_the_type_of_a_value_reads_it_in_any_order() -> None:
    net = Net()
    image = net.transpose(net.input("x", (2, 5, 7)), 0, 2, 1)
    other = net.transpose(net.input("like", (3, 4), onnx.TensorProto.DOUBLE), 1, 0)
    net.output(net.node("Exp", net.node("CastLike", net.node("Relu", other), image)))
    net.output(net.transpose(net.node("CastLike", image, other), 0, 2, 1), onnx.TensorProto.DOUBLE)
    model = net.model()
    legal, report = checked(model, "onnx")
    assert report.after.transposes == 1, "of the second input, which the first output gives"
    assert_same_numbers(model, legal)
    assert legalize(legal, "onnx")[1].cost == report.cost


def test_a_cast_to_the_type_of_a_blocked_value_needs_no_conversion() -> None:
    net = Net()
    first = net.conv(net.input("x", (1, 16, 8, 8)), 16, 16)
    net.output(net.conv(net.node("CastLike", net.node("Relu", first), first), 16, 16))
    options = {"desired_layouts": {"Conv": ["NCHW4c", "OIHW"]}}
    _, report = checked(net.model(), "convert-layout", backend_options=options)
    assert report.after.transposes == 2, "of the input and the output"
