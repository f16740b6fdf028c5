"""A product of two matrices reads and writes either order of their axes: it is a MatMul, or a Gemm that transposes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked, operators

from relayout import Backend, Implementation, Layout, legalize
from relayout.backend.composite import Composite, Device


def turned(net: Net, value: str, is_turned: bool) -> str:
    return net.transpose(value, 1, 0) if is_turned else value


def at_no_cost(model: onnx.ModelProto) -> list[str]:
    """The operators of the legal model, which costs nothing, computes the same, and is as cheap in a second run."""
    legal, report = checked(model, "onnx")
    assert report.cost == 0
    assert_same_numbers(model, legal)
    assert legalize(legal, "onnx")[1].cost == 0
    assert legalize(model, "onnx", engine="cp-sat")[1].cost == 0
    return operators(legal)


@pytest.mark.parametrize(("left", "result"), list(product([False, True], repeat=2)))
def test_a_product_with_a_constant_takes_and_gives_either_order(left: bool, result: bool) -> None:
    net = Net()
    rows = turned(net, net.input("x", (5, 7) if not left else (7, 5)), left)
    net.output(turned(net, net.node("MatMul", rows, net.weight(7, 9)), result))
    assert at_no_cost(net.model()) == ["MatMul" if left == result else "Gemm"]


@pytest.mark.parametrize(("right", "result"), list(product([False, True], repeat=2)))
def test_the_constant_may_be_the_left_operand(right: bool, result: bool) -> None:
    net = Net()
    columns = turned(net, net.input("x", (9, 7) if right else (7, 9)), right)
    net.output(turned(net, net.node("MatMul", net.weight(5, 7), columns), result))
    assert at_no_cost(net.model()) == ["MatMul" if right == result else "Gemm"]


def test_a_product_of_data_is_no_gemm() -> None:
    """A Gemm could take each operand in an order of its own. But one order of the axes of the product orders all its
    operands, so a second run would find more than the first. That with a constant has the same types."""
    net = Net()
    for n, other in enumerate((net.weight(7, 9), net.input("y", (7, 9)))):
        net.output(net.node("MatMul", net.transpose(net.input(f"x{n}", (7, 5)), 1, 0), other))
    legal, report = checked(net.model(), "onnx")
    assert sorted(operators(legal)) == ["Gemm", "MatMul", "Transpose"]
    assert legalize(legal, "onnx")[1].cost == report.cost == 2 * 35 * 4


@pytest.mark.parametrize("length", [6, "length"])
@pytest.mark.parametrize("opset", [11, 17])
def test_a_batch_of_one_matrix_is_a_matrix(length: int | str, opset: int) -> None:
    net = Net(opset)
    features = net.node("Relu", net.input("x", (1, 8, length)))
    rows = net.node("MatMul", net.transpose(features, 0, 2, 1), net.weight(8, 12))
    net.output(net.node("Relu", rows))
    assert "Gemm" in at_no_cost(net.model())


def test_the_rows_of_a_whole_image_become_one_axis() -> None:
    net = Net()
    image = net.transpose(net.input("x", (1, 8, 4, 6)), 0, 2, 3, 1)
    net.output(net.node("Softmax", net.node("MatMul", image, net.weight(8, 12)), axis=-1))
    net.output(net.transpose(net.node("MatMul", net.input("y", (1, 4, 6, 8)), net.weight(8, 12)), 0, 3, 1, 2))
    assert at_no_cost(net.model()).count("Gemm") == 2


def test_attention_over_one_sequence_needs_one_transpose() -> None:
    """The queries, or else the keys, lie in another order than their product gives."""
    net = Net()
    tokens = net.node("LayerNormalization", net.input("x", (1, 16, 24)), net.weight(24), axis=-1)
    heads = [
        net.transpose(net.node("Reshape", net.node("MatMul", tokens, net.weight(24, 24)), shape), 0, 2, 1, 3)
        for shape in [net.constant([1, 16, 3, 8])] * 3
    ]
    scores = net.node("MatMul", heads[0], net.transpose(heads[1], 0, 1, 3, 2))
    mixed = net.transpose(net.node("MatMul", net.node("Softmax", scores, axis=-1), heads[2]), 0, 2, 1, 3)
    joined = net.node("Reshape", mixed, net.constant([1, 16, 24]))
    net.output(net.node("Add", net.node("MatMul", joined, net.weight(24, 24)), tokens))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert report.after.transposes == 1
    assert report.cost == 2 * 16 * 24 * 4
    assert_same_numbers(model, legal)
    assert legalize(legal, "onnx")[1].cost == report.cost


@pytest.mark.parametrize(
    ("opset", "dtype"), [(10, onnx.TensorProto.FLOAT), (17, onnx.TensorProto.INT32)], ids=["opset 10", "integers"]
)
def test_a_gemm_is_written_only_where_onnx_and_runtimes_have_it(opset: int, dtype: int) -> None:
    """Before opset 11 a Gemm has a third operand, and onnxruntime has none of integers."""
    net = Net(opset)
    rows = net.transpose(net.input("x", (7, 5), dtype), 1, 0)
    other = net.weight(7, 9) if dtype == onnx.TensorProto.FLOAT else net.constant(np.ones((7, 9), np.int32))
    net.output(net.node("MatMul", rows, other), dtype)
    legal, report = checked(net.model(), "onnx")
    assert sorted(operators(legal)) == ["MatMul", "Transpose"]
    assert report.after.transposes == 1


@pytest.mark.parametrize("flips", list(product([0, 1], repeat=2)), ids=["", "B", "A", "AB"])
@pytest.mark.parametrize("summand", [None, (), (9,), (1,), (7, 9), (1, 9), (7, 1), (1, 1)], ids=str)
def test_a_gemm_takes_and_gives_either_order(flips: tuple[int, int], summand: tuple[int, ...] | None) -> None:
    net = Net()
    left = net.transpose(net.input("x", (7, 5) if not flips[0] else (5, 7)), 1, 0)
    right = net.transpose(net.input("y", (5, 9) if not flips[1] else (9, 5)), 1, 0)
    added = [] if summand is None else [net.weight(*summand)]
    given = net.node("Gemm", left, right, *added, transA=1 - flips[0], transB=1 - flips[1], alpha=0.5, beta=2.0)
    net.output(net.transpose(given, 1, 0))
    assert at_no_cost(net.model()) == ["Gemm"]


def test_a_node_in_the_place_of_one_is_named_after_it() -> None:
    net = Net()
    given = net.node("Gemm", net.transpose(net.input("x", (5, 7)), 1, 0), net.weight(5, 9))
    net.output(net.transpose(given, 1, 0))
    model = net.model()
    (product,) = (node for node in model.graph.node if node.op_type == "Gemm")
    product.name = "product"
    legal, _ = legalize(model, "onnx")
    assert [(node.op_type, node.name) for node in legal.graph.node] == [("Gemm", "product_1")]


def test_a_column_that_is_added_to_the_transposes_may_be_data() -> None:
    net = Net()
    rows = net.node("Gemm", net.transpose(net.input("x", (5, 7)), 1, 0), net.weight(5, 9), net.input("bias", (9,)))
    net.output(net.transpose(rows, 1, 0))
    assert at_no_cost(net.model()) == ["Reshape", "Gemm"]


@pytest.mark.parametrize("flips", list(product([0, 1], repeat=2)), ids=["", "B", "A", "AB"])
@pytest.mark.parametrize("behind", list(product([0, 1], repeat=2)), ids=["", "batch B", "batch A", "batch AB"])
def test_a_fused_product_of_batches_gives_its_transposes(flips: tuple[int, int], behind: tuple[int, int]) -> None:
    net, operands = Net(), []
    forms = dict(zip(("transA", "transB", "transBatchA", "transBatchB"), (*flips, *behind), strict=True))
    for name, own, is_flipped, is_behind in zip("xy", ((7, 5), (5, 9)), flips, behind, strict=True):
        rows, columns = own[::-1] if is_flipped else own
        is_turned = [2, rows, columns] if not is_behind else [rows, 2, columns]
        operands.append(net.transpose(net.input(name, (is_turned[0], is_turned[2], is_turned[1])), 0, 2, 1))
    given = net.node("FusedMatMul", *operands, alpha=0.5, domain="com.microsoft", **forms)
    net.output(net.transpose(given, 0, 2, 1))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert report.cost == sum(2 * 2 * rows * 5 * 4 for rows, own in zip((7, 9), behind, strict=True) if own)
    assert_same_numbers(model, legal)


def test_attention_of_a_gemm_over_one_sequence_needs_one_transpose() -> None:
    """GPT-2 has one Gemm for queries, keys and values. Its result may have the columns of all of them first."""
    net = Net()
    tokens = net.node("LayerNormalization", net.input("x", (1, 16, 24)), net.weight(24), axis=-1)
    rows = net.node("Reshape", tokens, net.constant([-1, 24]))
    every = net.node("Reshape", net.node("Gemm", rows, net.weight(24, 72), net.weight(72)), net.constant([1, 16, 72]))
    parts = net.node("Split", every, net.constant([24, 24, 24]), results=3, axis=2)
    heads = [net.transpose(net.node("Reshape", part, net.constant([1, 16, 3, 8])), 0, 2, 1, 3) for part in parts]
    scores = net.node("MatMul", heads[0], net.transpose(heads[1], 0, 1, 3, 2))
    mixed = net.transpose(net.node("MatMul", net.node("Softmax", scores, axis=-1), heads[2]), 0, 2, 1, 3)
    joined = net.node("Reshape", mixed, net.constant([-1, 24]))
    net.output(net.node("Add", net.node("Gemm", joined, net.weight(24, 24), net.weight(24)), rows))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert report.after.transposes == 1
    assert report.cost == 2 * 16 * 24 * 4
    assert_same_numbers(model, legal)
    assert legalize(legal, "onnx")[1].cost == report.cost


@pytest.mark.parametrize("flips", list(product([0, 1], repeat=2)), ids=["", "B", "A", "AB"])
def test_an_operand_of_unknown_rank_stays_in_its_place(flips: tuple[int, int]) -> None:
    net = Net()
    rows = net.node("Mystery", net.input("x", (7, 5)), domain="com.acme")
    right = net.transpose(net.input("y", (5, 9) if flips[1] else (9, 5)), 1, 0)
    given = net.node("Gemm", rows, right, net.weight(9), transA=flips[0], transB=flips[1])
    net.output(net.transpose(given, 1, 0))
    _, report = legalize(net.model(), "onnx")
    assert report.after.transposes == 1


class WithoutTransposedGemm(Backend):
    name = "without-transposed-gemm"

    def supports(self, node: ir.Node) -> bool:
        return node.op_type != "Gemm" or not node.attributes.get_int("transA", 0)


def test_a_gemm_that_the_backend_does_not_support_is_not_written() -> None:
    net = Net()
    net.output(net.node("MatMul", net.transpose(net.input("x", (7, 5)), 1, 0), net.weight(7, 9)))
    legal, _ = checked(net.model(), WithoutTransposedGemm())
    assert sorted(operators(legal)) == ["MatMul", "Transpose"]


@pytest.mark.parametrize(
    "backend", [WithoutTransposedGemm(), Composite([Device("a", lambda _: WithoutTransposedGemm())])]
)
def test_a_gemm_becomes_none_that_the_backend_does_not_support(backend: Backend) -> None:
    net = Net()
    net.output(net.node("Gemm", net.transpose(net.input("x", (7, 5)), 1, 0), net.weight(7, 9), net.weight(9)))
    net.output(net.transpose(net.node("Gemm", net.input("y", (7, 5)), net.weight(5, 9), net.weight(9)), 1, 0))
    legal, report = checked(net.model(), backend)
    assert sorted(operators(legal)) == ["Gemm", "Gemm", "Transpose"]
    assert report.after.transposes == 1


class OrderedGemm(Backend):
    name = "ordered-gemm"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "Gemm":
            return super().implementations(node)
        return [Implementation(tuple([Layout.from_names("01")] * len(node.inputs)), (Layout.from_names("01"),))]


def test_a_gemm_of_which_layouts_are_required_keeps_its_operands_in_their_places() -> None:
    net = Net()
    net.output(net.transpose(net.node("Gemm", net.input("y", (7, 5)), net.weight(5, 9)), 1, 0))
    legal, _ = checked(net.model(), OrderedGemm())
    assert operators(legal) == ["Gemm", "Transpose"]


@pytest.mark.parametrize("opset", [17, 21])
def test_rows_of_a_product_in_a_batch_are_in_any_order(opset: int) -> None:
    """Channels that a GroupNormalization has by groups, with the groups last, are the rows of an attention over pixels,
    whose result is added to them."""
    net = Net(opset)
    image = net.conv(net.input("x", (1, 3, 6, 8)), 3, 32)
    groups = net.node("Reshape", image, net.constant([0, 8, -1]))
    groups = net.node("InstanceNormalization", groups, net.weight(8), net.weight(8))
    value = net.node("Reshape", groups, net.constant([0, 32, 6, 8]))
    keys = net.node("Reshape", net.conv(value, 32, 8, 1), net.constant([0, 8, -1]))
    pixels = net.node("Softmax", net.node("MatMul", net.transpose(keys, 0, 2, 1), keys))
    read = net.node("MatMul", net.node("Reshape", net.conv(value, 32, 32, 1), net.constant([0, 32, -1])), pixels)
    total = net.node("Add", net.node("Reshape", read, net.constant([0, 32, 6, 8])), image)
    net.output(net.conv(total, 32, 4))
    legal, report = checked(net.model(), "nhwc")
    assert report.after.transposes == 3  # image, keys and result
    assert legalize(legal, "nhwc")[1].cost == report.cost
