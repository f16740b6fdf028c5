"""A legal model is optimal: legalizing it again neither improves nor changes it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked, operators

from relayout import Backend, Report, legalize, load_backend
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.requirements import collect_requirements
from relayout.layout.memory_format import order_of
from relayout.model.io import read_model
from relayout_backends.x86_nchwc.blocks import probe


def twice(model: onnx.ModelProto, backend: Any, **options: Any) -> tuple[onnx.ModelProto, Report]:
    """The legal model, which a second run leaves as it is at the same cost."""
    legal, report = checked(model, backend, **options)
    assert_same_numbers(model, legal)
    again, second = legalize(legal, backend, **options)
    assert second.after == report.after
    assert second.cost == report.cost
    assert list(again.graph.node) == list(legal.graph.node)
    return legal, report


def test_a_matrix_broadcast_over_a_factored_batch_is_priced_once_per_batch_element() -> None:
    net = Net()
    x = net.transpose(net.input("x", (4, 4, 2, 64)), 1, 0, 3, 2)
    rows = net.node("Reshape", x, net.constant([16, 64, 2]))
    result = net.node("Reshape", net.node("MatMul", rows, net.weight(2, 2)), net.constant([4, 4, 64, 2]))
    net.output(net.transpose(result, 1, 0, 3, 2))
    legal, report = checked(net.model(), "onnx")
    assert operators(legal) == ["MatMul"]
    assert report.cost == (4 * 4 - 1) * 2 * 2 * 4


def test_a_matmul_is_transposed_back_whatever_the_factors_of_its_depth() -> None:
    net = Net()
    x = net.input("x", (3, 2, 5))
    net.output(net.transpose(net.node("Relu", x), 1, 0, 2))
    depth = net.node("Reshape", net.transpose(x, 2, 0, 1), net.constant([5, 6]))
    net.output(net.node("MatMul", depth, net.weight(6, 4)))
    model = read_model(net.model())
    requirements = collect_requirements(
        model.graph, load_backend("onnx"), collect_tensors(model.graph, model.opset_imports)
    )
    (dot,) = [choice for choice in requirements.choices if choice.label.startswith("MatMul")]
    data = [alternative.formats[0] for alternative in dot.alternatives]
    # Rows outermost or innermost, the two pieces of the depth in the order of the source or of the other output.
    assert {order_of(axes) for axes in ((2, 0, 1), (0, 1, 2), (2, 1, 0), (1, 0, 2))} <= set(data)


def test_a_resize_is_not_permuted_into_one_that_the_backend_requires_tiled() -> None:
    net = Net(opset=19)
    x = net.input("x", (2, 3, 2, 6))
    net.output(net.node("Relu", net.transpose(x, 1, 2, 0, 3)))
    image = net.node("Relu", net.transpose(x, 3, 1, 2, 0))
    scales = net.constant(np.array([1, 1, 1.5, 0.5], np.float32))
    net.output(net.node("Resize", image, "", scales, mode="linear"))
    tiles = load_backend("convert-layout", options={"desired_layouts": {"Resize": ["NCHW2c"]}})
    twice(net.model(), tiles)


@pytest.mark.parametrize("extents", [(7, 6), (7, 7), (9, 7)])
def test_padding_that_moves_with_the_data_is_priced_at_each_move(extents: tuple[int, int]) -> None:
    net = Net()
    image = net.transpose(net.input("x", (1, *extents, 3)), 0, 3, 1, 2)
    net.output(net.node("Conv", image, net.weight(8, 3, 3, 3), strides=[2, 2]))
    legal, report = checked(net.model(), "tpu")
    assert report.cost >= report.after.bytes
    _, second = legalize(legal, "tpu")
    assert (second.cost, second.after.bytes) == (report.cost, report.after.bytes)


def test_a_copy_is_read_before_its_first_reader_inserts_unit_axes() -> None:
    net = Net(opset=13)
    x = net.input("x", (2, 3, 3, "length"))
    wide = net.transpose(net.node("Unsqueeze", x, net.constant([1])), 0, 1, 2, 4, 3)
    net.output(net.node("Less", net.transpose(wide, 0, 2, 3, 4, 1), wide), onnx.TensorProto.BOOL)
    net.output(net.node("MaxPool", net.transpose(x, 0, 3, 1, 2), kernel_shape=[2, 2]))
    legal, _ = twice(net.model(), "onnx")
    assert "Squeeze" not in operators(legal)


def test_a_node_that_computes_the_shape_of_a_constant_is_not_dead() -> None:
    net = Net()
    x = net.input("x", (2, 4, 3))
    shape = net.node("Constant", value_ints=[3, 1])
    column = net.node("Reshape", net.weight(3), shape)
    net.output(net.transpose(net.node("Relu", x), 1, 0, 2))
    net.output(net.node("MatMul", x, column))
    legal, _ = twice(net.model(), "nchw")
    assert operators(legal).count("Constant") == 1


def test_a_view_of_a_constant_that_comes_back_to_it_stays() -> None:
    net = Net()
    shape = net.node("Constant", value_ints=[6])
    net.output(net.node("Add", net.input("x", (1, 1, 1, 6)), net.node("Reshape", net.weight(6), shape)))
    legal, _ = twice(net.model(), "x86-nchwc")
    assert operators(legal) == operators(net.model())


@pytest.mark.parametrize(
    "between",
    [("Identity", {}), ("Transpose", {"perm": [0, 1, 3, 2]}), ("Dropout", {}), ("SpaceToDepth", {"blocksize": 2})],
    ids=lambda each: each[0],
)
def test_a_node_after_a_convolution_is_priced_without_the_elided_nodes_between(
    between: tuple[str, dict[str, Any]],
) -> None:
    net = Net()
    back = {"SpaceToDepth": ("DepthToSpace", {"blocksize": 2})}.get(between[0], between)
    image = net.transpose(net.transpose(net.input("x", (4, 4, 6, 4)), 0, 2, 3, 1), 0, 3, 1, 2)
    value = net.node("Conv", image, net.weight(4, 4, 3, 3), pads=[1] * 4)
    for operator, attributes in (between, back):
        value = net.node(operator, value, **attributes)
    net.output(net.node("Relu", value))
    twice(net.model(), "x86-nchwc")


def test_a_bias_is_found_behind_elided_nodes_after_a_product() -> None:
    net = Net()
    x = net.transpose(net.input("x", (1, 64, 50)), 0, 2, 1)
    value = net.node("Identity", net.node("MatMul", x, net.weight(64, 96)))
    net.output(net.transpose(net.node("Add", value, net.weight(96)), 0, 2, 1))
    _, report = twice(net.model(), "x86-nchwc")
    assert report.after.transposes == 2


def test_a_product_required_transposed_reads_its_operands_without_conversions() -> None:
    net = Net()
    x = net.node("Tanh", net.input("x", (4, 1, 4, 6)))
    net.output(net.transpose(net.node("MatMul", x, net.transpose(net.node("Elu", x), 0, 1, 3, 2)), 0, 1, 3, 2))
    legal, _ = twice(net.model(), "x86-nchwc")
    assert "Transpose" not in operators(legal)


def test_axis_names_from_an_elided_operator_alone_do_not_conflict() -> None:
    net = Net()
    x = net.input("x", (3, 1, 5, 6))
    image = net.node("Resize", x, "", "", net.constant([3, 1, 6, 12]), mode="nearest")
    net.output(net.node("ReduceProd", x, axes=[1, 0, 3], keepdims=0))
    net.output(net.node("DepthToSpace", net.transpose(image, 0, 3, 1, 2), blocksize=2, mode="CRD"))
    twice(net.model(), "opencl", objective="transposes")


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("shape", "given", "wanted"),
    [((3, 4), *perms) for perms in product([(0, 1), (1, 0)], repeat=2)]
    + [((2, 3, 4), *perms) for perms in product([(0, 1, 2), (0, 2, 1), (1, 2, 0)], repeat=2)],
)
def test_a_dot_is_chosen_by_the_operator_that_is_finally_written(
    shape: tuple[int, ...], given: tuple[int, ...], wanted: tuple[int, ...], side: int
) -> None:
    net = Net()
    x = net.transpose(net.node("Relu", net.input("x", shape)), *given)
    rows, depth = (shape[axis] for axis in given[-2:])
    operands = (x, net.weight(depth, 5)) if side else (net.weight(5, rows), x)
    net.output(net.node("Tanh", net.transpose(net.node("MatMul", *operands), *wanted)))
    legal, _ = twice(net.model(), "xla-cpu")
    assert "MatMul" not in operators(legal)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("shape", [(5, 5), (16, 5, 5)])
@pytest.mark.parametrize("known", ["computed", "computed from a node", "read by others too"])
def test_a_constant_that_becomes_private_to_one_dot_is_column_major_in_the_first_run(
    known: str, shape: tuple[int, ...], side: int
) -> None:
    net = Net()
    x = net.transpose(net.node("Relu", net.input("x", shape)), *range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    matrix = net.weight(5, 5)
    if known == "computed from a node":
        matrix = net.node("Constant", value=onnx.numpy_helper.from_array(net.rng.standard_normal((5, 5), np.float32)))
    if known != "read by others too":
        matrix = net.node("Sin", matrix)
    net.output(net.node("MatMul", x, matrix) if side else net.node("MatMul", matrix, x))
    net.output(net.node("Add", matrix, net.input("y", (5, 5))))
    net.output(net.transpose(net.node("MatMul", net.input("z", shape), matrix), *reversed(range(len(shape)))))
    _, report = twice(net.model(), "xla-cpu")
    assert report.after.transposes == 0


def test_an_einsum_may_separate_the_factors_of_an_axis() -> None:
    net = Net()
    x = net.transpose(net.node("Relu", net.input("x", (4, 6, 3, 5))), 0, 2, 3, 1)
    rows = net.node("Reshape", x, net.constant([12, 5, 6]))
    result = net.node("Einsum", rows, net.weight(6, 7), equation="abk,kn->abn")
    net.output(net.transpose(net.node("Reshape", result, net.constant([4, 3, 5, 7])), 0, 3, 1, 2))
    legal, report = twice(net.model(), "onnx")
    assert (operators(legal), report.cost) == (["Relu", "Einsum"], 0)


def test_the_summed_axis_of_an_einsum_may_be_factored() -> None:
    net = Net()
    x = net.transpose(net.node("Relu", net.input("x", (4, 2, 5, 3))), 0, 2, 1, 3)
    rows = net.node("Reshape", x, net.constant([4, 5, 6]))
    net.output(net.node("Einsum", rows, net.weight(6, 7), equation="abk,kn->abn"))
    legal, report = twice(net.model(), "onnx")
    assert (operators(legal), report.cost) == (["Relu", "Einsum"], 0)


def test_the_post_pass_leaves_no_unused_node() -> None:
    class Fusing(Backend):
        """Does without the summand of an Add."""

        name = "fusing"

        def finish(self, model: ir.Model, place: str = "") -> bool:
            for node in model.graph:
                if node.op_type == "Add":
                    node.replace_input_with(1, node.inputs[0])
                    return True
            return False

    net = Net()
    summand = net.node("Concat", net.weight(1, 2), net.weight(1, 2), axis=1)
    net.output(net.node("Add", net.input("x", (1, 4)), summand))
    legal, report = legalize(net.model(), Fusing())
    assert [node.op_type for node in legal.graph.node] == ["Add"]
    assert len(legal.graph.initializer) == 0
    assert report.after.nodes == 1


def test_the_post_pass_keeps_nodes_that_it_does_not_concern() -> None:
    net = Net()
    x = net.input("x", (2, 4, 3))
    wide = net.node("Unsqueeze", net.node("Relu", x), net.constant([1]))
    net.output(net.transpose(net.node("Squeeze", wide, net.constant([1])), 1, 2, 0))
    net.output(net.node("Slice", net.node("Shape", wide), net.constant([0]), net.constant([2])), onnx.TensorProto.INT64)
    twice(net.model(), "x86-nchwc")


def test_the_layout_of_the_last_convolution_propagates_even_if_already_packed() -> None:
    """Else it would be that of the normalization above, in which the concatenation costs no more."""
    desired = {"BatchNormalization": ["NHWC"], "Conv": ["NCHW2c", "OIHW2i2o"]}
    net = Net(opset=9)
    moments = [net.weight(4), net.weight(4), net.weight(4), net.constant(np.ones(4, np.float32))]
    value = net.node("BatchNormalization", net.conv(net.input("x", (1, 8, 6, 5)), 8, 4, 1), *moments)
    value = net.node("Concat", net.input("beside", (1, 8, 6, 5)), net.conv(net.node("Relu", value), 4, 4), axis=1)
    net.output(value)
    moments = [net.weight(12), net.weight(12), net.weight(12), net.constant(np.ones(12, np.float32))]
    net.output(net.node("BatchNormalization", value, *moments))
    backend = load_backend("convert-layout", options={"desired_layouts": desired})
    legal, report = legalize(net.model(), backend, output_layouts={value: "NHCW"})
    again, second = legalize(legal, backend)
    assert second.cost == report.cost
    assert list(again.graph.node) == list(legal.graph.node)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_normalization_that_cannot_meet_its_requirement_is_decomposed(
    has_bias: bool,
) -> None:
    net = Net(opset=18)
    x = net.node("Conv", net.input("x", (2, 6, 4, 5)), net.weight(6, 6, 1, 1))
    parameters = [net.weight(5) for _ in range(1 + has_bias)]
    x = net.node("LayerNormalization", x, *parameters, axis=-1)
    net.output(net.node("Conv", x, net.weight(6, 6, 1, 1)))
    legal, report = twice(net.model(), "opencl")
    assert report.after.transposes == 0
    assert "ReduceSumSquare" not in operators(legal)
    # Between channels last, where a sum of squares is as asked, the data is read and written less.
    legal, _ = twice(net.model(), "canonical")
    assert "ReduceSumSquare" in operators(legal)


def test_a_softmax_that_cannot_meet_its_requirement_is_decomposed_in_place() -> None:
    net = Net(opset=11)
    x = net.node("Conv", net.input("x", (2, 6, 4, 5)), net.weight(6, 6, 1, 1))
    net.output(net.node("Conv", net.node("Softmax", x, axis=3), net.weight(6, 6, 1, 1)))
    _, report = twice(net.model(), "opencl", objective="transposes")
    assert report.after.transposes == 0


def test_reduced_axes_are_factored_like_kept_axes() -> None:
    """The copies of x beside each other in the innermost place are the rows and columns of each block."""
    net = Net()
    x = net.input("x", (2, 3, 6, 4))
    blocks = net.node("DepthToSpace", net.node("Concat", x, x, x, x, axis=1), blocksize=2)
    net.output(net.node("ReduceL2", net.node("Sigmoid", blocks), axes=[3, 0]))
    legal, report = twice(net.model(), "onnx")
    assert report.after.transposes == 0
    assert "DepthToSpace" not in operators(legal)


def test_a_reshape_keeps_the_size_even_of_unknown_extents() -> None:
    net = Net()
    flat = net.node("Flatten", net.transpose(net.input("x", (6, "n")), 1, 0), axis=0)
    net.output(net.node("Exp", net.node("Sigmoid", flat)))
    _, report = twice(net.model(), "onnx")
    assert report.cost == report.after.bytes == report.before.bytes


def test_a_node_that_needs_whole_axes_gets_them_beside_a_factored_format() -> None:
    """The pool reads merged blocks of the picture; in the picture's own order they stand apart, and next to that
    order they stand together, before the channels: nobody else names it."""
    net = Net(opset=16)
    x = net.input("x", (5, 6, 3, 2))
    tall = net.node("Concat", x, x, axis=2)
    both = net.node("Concat", tall, tall, axis=3)
    pieces = net.transpose(net.node("Reshape", both, net.constant([5, 6, 3, 2, 2, 2])), 0, 2, 4, 3, 5, 1)
    net.output(net.node("GlobalMaxPool", net.node("Reshape", pieces, net.constant([5, 24, 3, 2]))))
    legal, report = checked(model := net.model(), "onnx")
    assert_same_numbers(model, legal)
    assert report.cost == 0


def test_windows_of_attention_are_cut_out_of_the_copy_that_the_residual_reads() -> None:
    """A block of Swin: in its legal model the features have 13 formats, and a direct Transpose into windows is dear.
    They have half as many channels as a block.

    The scores are small, as in an attention that divides them: a Softmax of large ones amplifies rounding.
    """
    net, deep = Net(), probe() // 2
    features = net.transpose(net.conv(net.input("x", (2, 4, 24, 24)), 4, deep), 0, 2, 3, 1)
    windows = net.node("Reshape", features, net.constant([2, 4, 6, 4, 6, deep]))
    rows = net.node("Reshape", net.transpose(windows, 0, 1, 3, 2, 4, 5), net.constant([32, 36, deep]))
    query, key, value = [
        net.transpose(
            net.node("Reshape", net.node("MatMul", rows, small), net.constant([32, 36, 2, deep // 2])), 0, 2, 1, 3
        )
        for small in (net.constant(net.rng.normal(0, 0.1, (deep, deep)).astype(np.float32)) for _ in range(3))
    ]
    weights = net.node("Softmax", net.node("MatMul", query, net.transpose(key, 0, 1, 3, 2)), axis=-1)
    heads = net.transpose(net.node("MatMul", weights, value), 0, 2, 1, 3)
    attended = net.node("MatMul", net.node("Reshape", heads, net.constant([32, 36, deep])), net.weight(deep, deep))
    mixed = net.node("LayerNormalization", net.node("Add", rows, attended), net.weight(deep), net.weight(deep), axis=-1)
    back = net.transpose(net.node("Reshape", mixed, net.constant([2, 4, 4, 6, 6, deep])), 0, 1, 3, 2, 4, 5)
    whole = net.transpose(net.node("Reshape", back, net.constant([2, 24, 24, deep])), 0, 3, 1, 2)
    net.output(net.conv(whole, deep, 4))
    twice(net.model(), "x86-nchwc")
