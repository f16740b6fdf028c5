"""Layouts by numbers count the axes that an operand has in the source: in both runs, and in the verifier."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

import relayout
from relayout.backend import Backend, Implementation
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import OPERAND_ORDERS_KEY
from relayout.verification.verifier import verify


class Numbered(Backend):
    """Requires one order of every Relu, Sin and Cos, by the numbers of the axes."""

    name = "numbered"

    def __init__(self, order: str) -> None:
        super().__init__()
        self._layout = Layout.from_names(order)

    def implementations(self, node: ir.Node) -> tuple[Implementation, ...]:
        if node.op_type not in ("Relu", "Sin", "Cos"):
            return tuple(super().implementations(node))  # type: ignore[arg-type]
        return (Implementation((self._layout,), (self._layout,)),)


def turned() -> onnx.ModelProto:
    """One value that readers count in three ways."""
    net = Net()
    value = str(net.node("Relu", net.input("x", (2, 4, 6, 8))))
    net.output(net.node("Sin", net.transpose(value, 0, 2, 3, 1)))
    net.output(net.node("Cos", net.transpose(value, 0, 3, 2, 1)))
    net.output(net.node("Tan", net.transpose(net.node("Exp", net.transpose(value, 0, 3, 2, 1)), 0, 3, 2, 1)))
    return net.model()


@pytest.mark.parametrize("order", ["0123", "0231", "0312", "3210"])
def test_readers_behind_transposes_count_axes_of_their_own(order: str) -> None:
    legal, report = relayout.legalize(turned(), Numbered(order), check=True)
    assert report.verification is not None
    assert not report.verification.findings
    again, second = relayout.legalize(legal, Numbered(order))
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


def test_an_order_that_an_operand_does_not_have_is_found() -> None:
    legal, _ = relayout.legalize(turned(), Numbered("0231"))
    (note,) = [p for node in legal.graph.node if node.op_type == "Sin" for p in node.metadata_props]
    assert (note.key, note.value) == (OPERAND_ORDERS_KEY, "0,2,3,1;0,2,3,1")
    for order, wrong in (("", []), ("0,2,3,1", [0]), (";0,2,3,1", [None]), ("0,2,3,1;0,2,3,1", [0, None])):
        plain = turned()
        plain.graph.node[2].metadata_props.add(key=OPERAND_ORDERS_KEY, value=order)
        findings = verify(plain, Numbered("0231"), turned()).findings
        assert {"layout-requirement"} <= {each.rule for each in findings}
        assert [each.operand for each in findings if each.rule == "layout-annotation"] == wrong


def test_names_that_operators_give_differently_are_those_of_the_first_run() -> None:
    """A pool and a convolution name one value's axes differently; the pool's tiles hide its names from a second run."""
    net = Net()
    pooled = str(net.node("MaxPool", net.input("x", (5, 4, 1, 4)), kernel_shape=[1, 3]))
    conv = net.node("Conv", net.transpose(pooled, 0, 3, 1, 2), net.weight(2, 2, 3, 1), auto_pad="SAME_UPPER")
    net.output(net.node("Add", pooled, net.transpose(str(conv), 0, 2, 3, 1)))
    net.output(net.node("Concat", pooled, pooled, axis=2))
    rules = [
        {"op": "Concat", "inputs": ["WHNC"], "results": ["*"]},
        {"op": "MaxPool", "data": "NCHW2c"},
        {"op": "Conv", "data": "WHCN", "kernel": "HOWI"},
    ]
    table = {"name": "named", "extends": "onnx", "rule": rules}
    legal, report = relayout.legalize(net.model(), table)
    (note,) = [p for node in legal.graph.node for p in node.metadata_props if p.key == OPERAND_ORDERS_KEY]
    assert note.value == "W,H,N,C;"
    again, second = relayout.legalize(legal, table)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


def test_names_that_views_hide_from_the_first_run_are_noted_on_results_too() -> None:
    """Flatten merges the axes that the convolution names; the legal model has one Reshape, which keeps them."""
    net = Net()
    x = net.input("x", (3, 3, 5, 3))
    net.output(net.node("Softmax", x, axis=2))
    net.output(net.node("Conv", net.node("Reshape", x, net.constant([3, 3, 15])), net.weight(2, 3, 1)))
    hidden = net.node("Reshape", net.node("Flatten", x, axis=2), net.constant([9, 1, 1, 5, 3]))
    net.output(net.node("Conv", net.transpose(str(hidden), 1, 4, 2, 0, 3), net.weight(1, 3, 1, 2, 3)))
    legal, report = relayout.legalize(net.model(), "canonical")
    (note,) = [p for node in legal.graph.node for p in node.metadata_props if p.key == OPERAND_ORDERS_KEY]
    assert note.value == "N,H,W,C;N,H,W,C"
    again, second = relayout.legalize(legal, "canonical")
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


class Columns(Backend):
    """A Gemm reads one of its matrices column by column."""

    name = "columns"

    def __init__(self, operand: int = 1) -> None:
        super().__init__()
        self._operand = operand

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if node.op_type == "Gemm" and n == self._operand:
            return "{0,1}"
        return super().nth_input_layout_requirements(node, n)


@pytest.mark.parametrize("channels", [3, 16])
def test_an_axis_of_a_constant_whose_factors_change_places_is_still_that_axis(channels: int) -> None:
    """The rows of the matrix are a flattened image, which lies channels last. They may be as many as the columns."""
    net = Net()
    flat = str(net.node("Flatten", net.transpose(net.input("x", (5, 2, 2, channels)), 0, 3, 1, 2)))
    net.output(net.node("Gemm", flat, net.weight(4 * channels, 64)))
    legal, report = relayout.legalize(net.model(), Columns, check=True)
    assert report.verification is not None
    assert not report.verification.findings
    assert [node.op_type for node in legal.graph.node] == ["Reshape", "Gemm"]
    (note,) = [p for node in legal.graph.node for p in node.metadata_props if p.key == OPERAND_ORDERS_KEY]
    assert note.value == ";1,0"
    again, second = relayout.legalize(legal, Columns)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)
    # Rows in the place of columns.
    (matrix,) = [each for each in legal.graph.initializer if [*each.dims] == [64, 4 * channels]]
    data = onnx.numpy_helper.to_array(matrix)
    matrix.CopyFrom(onnx.numpy_helper.from_array(data.T.reshape(data.shape), matrix.name))
    found = verify(legal, Columns, net.model(), run=False).findings
    assert ("layout-annotation", 1) in [(each.rule, each.operand) for each in found]


def test_an_axis_of_an_operand_whose_factors_change_places_is_still_that_axis() -> None:
    net = Net()
    flat = str(net.node("Flatten", net.transpose(net.input("x", (4, 4, 4, 4)), 2, 3, 1, 0), axis=2))
    net.output(net.node("Gemm", flat, net.weight(16, 8)))
    legal, report = relayout.legalize(net.model(), Columns(0), check=True)
    assert report.verification is not None
    assert (report.verification.findings, report.cost) == ((), 0)
    (note,) = [p for node in legal.graph.node for p in node.metadata_props if p.key == OPERAND_ORDERS_KEY]
    assert note.value == "1,0;"
    again, second = relayout.legalize(legal, Columns(0))
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


ATTENTION = """<ir_version: 8, opset_import: ["" : 17]>
attention (float[N,4,4,16] x) => (float[N,4,2,4] y) {
    sizes = Constant<value_ints = [4, 4, 8]> ()
    queries, keys, values = Split<axis = 3> (x, sizes)
    q = Transpose<perm = [0, 2, 1, 3]> (queries)
    k = Transpose<perm = [0, 2, 3, 1]> (keys)
    v = Transpose<perm = [0, 2, 1, 3]> (values)
    scores = MatMul(q, k)
    weights = Softmax<axis = -1> (scores)
    heads = MatMul(weights, v)
    rows = Transpose<perm = [0, 2, 1, 3]> (heads)
    halves = Constant<value_ints = [0, 4, 4, 2, 4]> ()
    apart = Reshape(rows, halves)
    axis = Constant<value_ints = [2]> ()
    y = ReduceSum<keepdims = 0> (apart, axis)
}"""


@pytest.mark.parametrize("first", ["onnx", "canonical", "x86-nchwc"])
def test_a_reader_counts_its_own_axes_and_not_those_of_an_annotated_value(first: str) -> None:
    """The products lie in ONNX's order and read parts of a Split, which are annotated as permuted: their axes count as
    in the Split. Heads, rows and columns are equally many, so that no shape tells a product of other axes."""
    legal, report = relayout.legalize(onnx.parser.parse_model(ATTENTION), first)
    again, second = relayout.legalize(legal, "x86-nchwc", check=True)
    assert second.verification is not None
    assert not second.verification.findings
    if first == "x86-nchwc":
        assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


def product_of(left: list[int], right: list[int], result: list[int], shape: tuple[int, ...]) -> onnx.ModelProto:
    """A MatMul of two operands of this shape, each behind a Transpose, and a Transpose of its result."""
    net = Net()
    before = [[shape[perm.index(axis)] for axis in range(len(shape))] for perm in (left, right)]
    operands = [net.input(name, given) for name, given in zip("xw", before, strict=True)]
    turned = [net.transpose(value, *perm) for value, perm in zip(operands, (left, right), strict=True)]
    net.output(net.transpose(str(net.node("MatMul", *turned)), *result))
    return net.model()


@pytest.mark.parametrize(
    ("left", "right", "result", "note"),
    [
        # A MatMul with a permuted batch.
        ([1, 0, 2, 3, 4], [3, 1, 0, 2, 4], [3, 2, 1, 0, 4], "1,0,2,3,4;1,0,2,3,4;1,0,2,3,4"),
        ([1, 3, 0, 2], [1, 0, 2, 3], [1, 0, 3, 2], "1,0,2,3;1,0,2,3;1,0,2,3"),
        # The product of the transposes with a permuted batch: the first input is the source's second.
        ([0, 2, 3, 1], [3, 2, 0, 1], [1, 0, 3, 2], "1,0,2,3;1,0,2,3;1,0,2,3"),
        # FusedMatMul then has another order of the batch than the MatMul in whose place it stands.
        ([1, 2, 0, 4, 3], [4, 0, 3, 2, 1], [1, 3, 0, 2, 4], "2,0,1,3,4;2,0,1,3,4;2,0,1,3,4"),
    ],
)
def test_a_product_notes_its_batch_where_another_implementation_is_by_numbers(
    left: list[int], right: list[int], result: list[int], note: str
) -> None:
    shape = (2, 3, 4, 8, 8) if len(left) == 5 else (2, 4, 8, 8)
    legal, report = relayout.legalize(product_of(left, right, result, shape), "x86-nchwc", check=True)
    assert report.verification is not None
    assert not report.verification.findings
    assert note in [p.value for node in legal.graph.node for p in node.metadata_props if p.key == OPERAND_ORDERS_KEY]
    again, second = relayout.legalize(legal, "x86-nchwc", check=True)
    assert second.verification is not None
    assert not second.verification.findings
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)
