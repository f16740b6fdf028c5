"""`x86-nchwc` runs products and Softmax in the order of onnxruntime's kernels if conversions cost less."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers

import relayout
from relayout_backends.x86_nchwc import X86Nchwc


def turned_product(rows: int, *, bias: bool = False, known: bool = True, is_computed: bool = False) -> onnx.ModelProto:
    """Channels-first data times a matrix [64, 96], between two Transposes."""
    net = Net()
    value = net.transpose(net.input("x", (1, 64, rows)), 0, 2, 1)
    matrix = net.weight(64, 96) if known else net.input("w", (64, 96))
    matrix = net.node("Identity", matrix) if is_computed else matrix
    value = net.node("MatMul", value, matrix)
    if bias:
        value = net.node("Add", value, net.weight(96))
    net.output(net.transpose(value, 0, 2, 1))
    return net.model()


def attention() -> onnx.ModelProto:
    """Queries and keys [2, 50, 3, 8]; what is soft is read along its rows."""
    net = Net()
    queries = net.transpose(net.input("q", (2, 50, 3, 8)), 0, 2, 1, 3)
    keys = net.transpose(net.input("k", (2, 50, 3, 8)), 0, 2, 3, 1)
    weights = net.node("Softmax", net.node("MatMul", queries, keys), axis=-1)
    values = net.transpose(net.input("v", (2, 50, 3, 8)), 0, 2, 1, 3)
    net.output(net.transpose(net.node("MatMul", weights, values), 0, 2, 1, 3))
    return net.model()


def cost(model: onnx.ModelProto) -> tuple[int, int]:
    """Transposes and cost of the legal model, whose numbers are the source's."""
    legal, report = relayout.legalize(model, X86Nchwc(block=16))
    assert_same_numbers(model, legal)
    assert report.cost is not None
    return report.after.transposes, report.cost


def test_a_product_with_a_constant_is_transposed_only_if_cheaper_than_two_transposes() -> None:
    # 64 * 96 * 3 * 30 / 1000 bytes a row, against 2 * 4 * (64 + 96).
    assert cost(turned_product(50)) == (0, 50 * 64 * 96 * 90 // 1000)
    # PyTorch writes an Identity for weights that several layers share. onnxruntime computes it before the run.
    assert cost(turned_product(50, is_computed=True)) == (0, 50 * 64 * 96 * 90 // 1000)
    # With a bias the row's result is read and written once more.
    assert cost(turned_product(50, bias=True)) == (2, 50 * 2 * 4 * (64 + 96))


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_transposed_product_costs_as_much_in_the_legal_model(has_bias: bool) -> None:
    """Whose constant left operand is packed in each run as well."""
    net = Net()
    rows = net.transpose(net.input("x", ("n", 64, 50)), 0, 2, 1)
    product = net.node("MatMul", rows, net.weight(64, 16))
    net.output(net.transpose(net.node("Add", product, net.weight(16)) if has_bias else product, 0, 2, 1))
    legal, first = relayout.legalize(net.model(), X86Nchwc(block=16))
    again, second = relayout.legalize(legal, X86Nchwc(block=16))
    assert first.cost == second.cost == 50 * 64 * 16 * 90 // 1000 + has_bias * 2 * 4 * 50 * 16
    assert again == legal


def test_a_second_run_finds_the_bias_behind_the_conversion_of_the_first() -> None:
    """Rows of two sequences, step by step, in heads: the conversion to heads is before the bias or behind it."""
    net = Net()
    rows = net.node("Relu", net.transpose(net.input("x", (2, 7, 16)), 1, 0, 2))
    features = net.node("Add", net.node("MatMul", rows, net.weight(16, 32)), net.weight(32))
    heads = net.node("Reshape", features, net.constant(np.array([7, 2, 4, 8])))
    queries, keys = net.node("Split", heads, net.constant(np.array([4, 4])), axis=3, results=2)
    product = net.node("MatMul", net.transpose(queries, 2, 1, 0, 3), net.transpose(keys, 2, 1, 3, 0))
    net.output(net.node("Softmax", product, axis=-1))
    legal, first = relayout.legalize(net.model(), X86Nchwc(block=16))
    again, second = relayout.legalize(legal, X86Nchwc(block=16))
    assert first.cost == second.cost == 2 * 4 * 7 * 2 * 32
    assert again == legal


@pytest.mark.parametrize(
    ("views", "bias", "is_bias"),
    [
        ([], (8,), True),
        ([], (6, 1), False),
        ([(0, 2, 1)], (8, 1), True),
        ([(0, 2, 1)], (6,), False),
        ([[5, 6, 2, 4]], (2, 4), True),
        ([[5, 6, 2, 4], (2, 0, 1, 3)], (2, 1, 1, 4), True),
        ([[5, 6, 2, 4], (2, 0, 1, 3)], (2, 1, 1, 1), False),
        ([[5, 6, 2, 4], (2, 0, 1, 3), [2, 30, 4]], (2, 1, 4), True),
        ([[5, 6, 2, 4], (2, 0, 1, 3), [60, 4]], (60, 1), False),
        ([[5, 6, 2, 4], (0, 1, 3, 2), [5, 6, 8]], (8,), True),
        ([[5, 48]], (48,), False),
        ([[8, 30]], (8, 1), False),
        ([[5, 6, 1, 8], (0, 3, 2, 1)], (8, 1, 1), True),
    ],
)
def test_a_bias_is_a_vector_along_the_columns_behind_all_views(
    views: list[list[int] | tuple[int, ...]], bias: tuple[int, ...], is_bias: bool
) -> None:
    """A list is the shape of a Reshape, a tuple the order of a Transpose."""
    net = Net()
    value = net.node("MatMul", net.input("x", (5, 6, 3)), net.weight(3, 8))
    for each in views:
        is_shape = isinstance(each, list)
        reshaped = net.node("Reshape", value, net.constant(np.array(each))) if is_shape else None
        value = reshaped or net.transpose(value, *each)
    net.output(net.node("Add", value, net.weight(*bias)))
    (product,) = [node for node in relayout.read_model(net.model()).graph if node.op_type == "MatMul"]
    cost = X86Nchwc(block=16).order_cost(product, (2, 0, 1), 0, is_rewritten=True)
    assert cost == 5 * 6 * 8 * 3 * 90 // 1000 + is_bias * 2 * 4 * 5 * 6 * 8


def test_a_product_of_data_costs_the_same_transposed() -> None:
    # The matrix is what is transposed then.
    assert cost(turned_product(50, known=False)) == (1, 2 * 4 * 64 * 96)


def test_a_softmax_stays_along_the_innermost_axis() -> None:
    legal, _ = relayout.legalize(attention(), X86Nchwc(block=16))
    assert_same_numbers(attention(), legal)
    (softmax,) = [node for node in legal.graph.node if node.op_type == "Softmax"]
    assert {entry.name: entry.i for entry in softmax.attribute} in ({"axis": 3}, {"axis": -1})


@pytest.mark.parametrize("opset", [11, 17])
def test_a_softmax_over_channels_first_data_is_transposed_by_its_kernel_or_by_transposes(opset: int) -> None:
    net = Net(opset=opset)
    net.output(net.node("Softmax", net.node("Relu", net.input("x", (1, 4, 6, 6))), axis=1))
    legal, report = relayout.legalize(net.model(), X86Nchwc(block=16))
    assert Counter(node.op_type for node in legal.graph.node) == {"Relu": 1, "Softmax": 1}
    assert report.cost == (4 * 4 * 4 * 6 * 6 if opset == 17 else 0)
    assert_same_numbers(net.model(), legal, {"x": np.ones((1, 4, 6, 6), np.float32)})


def test_a_softmax_of_an_open_batch_costs_as_much_in_the_legal_model() -> None:
    # Between two LSTMs the batch is the second axis. The charge for an axis that is not innermost counts it once.
    zeros = ",".join(["0"] * 64)
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[n,21,4] x) => (float[21,1,n,4] y)
        <float[1,16,4] w = {{{zeros}}}, float[1,16,4] r = {{{zeros}}}, int64[1] one = {{1}}> {{
            a = Transpose <perm = [1,0,2]> (x)
            b, bh, bc = LSTM <hidden_size = 4> (a, w, r)
            c = Squeeze (b, one)
            d = Transpose <perm = [1,0,2]> (c)
            e = Softmax <axis = 1> (d)
            f = Transpose <perm = [1,0,2]> (e)
            y, yh, yc = LSTM <hidden_size = 4> (f, w, r) }}"""
    legal, report = relayout.legalize(onnx.parser.parse_model(text), X86Nchwc(block=16))
    assert [node.op_type for node in legal.graph.node].count("Transpose") == 1
    again, second = relayout.legalize(legal, X86Nchwc(block=16))
    assert (second.cost, again) == (report.cost, legal)
