"""XLA's minor-to-major notation needs no axis names: as an answer of a backend, in a table, and at a boundary."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from onnx import numpy_helper

import relayout
from relayout import Backend, Implementation, InfeasibleError, Layout
from relayout.backend import Writing, rank_of


class Asking(Backend):
    """Data, and what is made of them, in one order of axes by their numbers."""

    name = "asking"
    order = "{1,3,2,0}"

    def nth_input_layout_requirements(self, node: Any, n: int) -> Any:
        return self.order if n == 0 and self._is_asked(node) else super().nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: Any, n: int) -> Any:
        return self.order if self._is_asked(node) else super().nth_result_layout_requirements(node, n)

    def _is_asked(self, node: Any) -> bool:
        return node.op_type in OPERATORS


OPERATORS = ["Conv", "MaxPool", "Softmax"]
NETS = {
    "Softmax": lambda net, x: net.node("Softmax", x, axis=1),
    "Conv": lambda net, x: net.conv(x, 3, 4),
    "both": lambda net, x: net.node("Softmax", net.node("Relu", net.conv(x, 3, 4)), axis=1),
    "MaxPool": lambda net, x: net.node("MaxPool", x, kernel_shape=[2, 2]),
}


def network(operator: str) -> Net:
    net = Net()
    net.output(NETS[operator](net, net.input("x", (1, 3, 6, 8))))
    return net


@pytest.mark.parametrize("operator", NETS)
@pytest.mark.parametrize(
    "backend",
    [Asking, {"name": "asking", "rule": [{"op": OPERATORS, "inputs": ["{1,3,2,0}"], "results": ["{1,3,2,0}"]}]}],
    ids=["class", "table"],
)
def test_a_backend_may_require_an_order_by_axis_numbers(operator: str, backend: Any) -> None:
    model = network(operator).model()
    legal, report = relayout.legalize(model, backend, check=True)
    assert (report.status, report.after.transposes) == ("optimal", 2)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(model, legal)


def test_axis_numbers_set_the_layout_of_an_input_without_axis_names() -> None:
    net = Net()
    net.output(net.node("Relu", net.input("x", (2, 3, 4, 5, 6, 7))))
    order = "{0,5,4,3,2,1}"
    layouts = {"x": order}, {net.outputs[0].name: order}
    legal, report = relayout.legalize(net.model(), input_layouts=layouts[0], output_layouts=layouts[1])
    assert report.after.transposes == 0
    shape = [dim.dim_value for dim in legal.graph.input[0].type.tensor_type.shape.dim]
    assert shape == [3, 4, 5, 6, 7, 2]


def table(operator: str, inputs: list[str] | None = None, results: list[str] | None = None) -> dict[str, Any]:
    sides = {"inputs": inputs, "results": results}
    return {"name": "numbers", "rule": [{"op": operator} | {side: own for side, own in sides.items() if own}]}


RIGHT = table("MatMul", ["**", "{0,1}"], ["**"])
"""The right operand of a product is column-major."""


def products(*constant: bool, operator: str = "MatMul", extents: tuple[int, ...] = (7, 9, 4), opset: int = 17) -> Net:
    """A chain of products with right operands that are constant or not."""
    net = Net(opset)
    value = net.input("x", (5, extents[0]))
    for n, is_constant in enumerate(constant):
        shape = extents[n : n + 2]
        value = net.node(operator, value, net.weight(*shape) if is_constant else net.input(f"v{n}", shape))
    net.output(value)
    return net


def assert_legal_twice(model: onnx.ModelProto, backend: Any) -> onnx.ModelProto:
    """The legal model, which the verifier accepts and a second run leaves as it is."""
    legal, first = relayout.legalize(model, backend, check=True)
    assert first.status == "optimal"
    assert first.verification is not None
    assert first.verification.findings == ()
    assert relayout.verify(legal, backend, against=model).passed
    assert_same_numbers(model, legal)
    again, second = relayout.legalize(legal, backend, check=True)
    assert second.verification is not None
    assert second.verification.passed
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    return legal


@pytest.mark.parametrize("constant", [(False,), (True, False), (False, False)])
def test_a_product_of_data_whose_right_operand_is_column_major_has_no_form(constant: tuple[bool, ...]) -> None:
    """Not with exchanged operands either: they are the left and right ones of the product that is written."""
    with pytest.raises(InfeasibleError) as refused:
        relayout.legalize(products(*constant).model(), RIGHT)
    assert refused.value.conflict == (f"MatMul 'n{constant.index(False)}' input 1 requires {{0,1}}",)
    assert refused.value.hint.startswith(
        "MatMul has no form with its operands in these orders; a `rewrite` can write another operator; "
    )


def test_a_relaxation_is_in_the_notation_of_the_requirement() -> None:
    with pytest.raises(InfeasibleError) as refused:
        relayout.legalize(products(False).model(), RIGHT)
    assert refused.value.relaxation == ("MatMul 'n0' took input 1 in {1,0}",)


@pytest.mark.parametrize("constant", [(True,), (True, True)])
def test_a_product_with_a_column_major_constant_is_a_gemm(constant: tuple[bool, ...]) -> None:
    legal = assert_legal_twice(products(*constant).model(), RIGHT)
    assert [node.op_type for node in legal.graph.node] == ["Gemm"] * len(constant)
    assert [[each.i for each in node.attribute if each.name == "transB"] for node in legal.graph.node] == [[1]] * len(
        constant
    )


def test_a_relaxation_of_a_constant_is_without_its_order() -> None:
    """Before opset 11 a Gemm has a third operand, so there is none in place of a MatMul."""
    with pytest.raises(InfeasibleError) as refused:
        relayout.legalize(products(True, opset=10).model(), RIGHT)
    assert refused.value.relaxation == ("MatMul 'n0' took input 1 in another order",)


def test_a_result_of_a_product_is_not_column_major() -> None:
    with pytest.raises(InfeasibleError):
        relayout.legalize(products(False).model(), table("MatMul", results=["{0,1}"]))


@pytest.mark.parametrize("constant", [True, False])
def test_a_matrix_of_one_column_is_in_either_order(constant: bool) -> None:
    model = products(constant, extents=(7, 1)).model()
    assert [node.op_type for node in assert_legal_twice(model, RIGHT).graph.node] == ["MatMul"]


@pytest.mark.parametrize("constant", [(True,), (False,), (True, False)])
def test_an_operator_with_such_a_form_takes_it(constant: tuple[bool, ...]) -> None:
    legal = assert_legal_twice(products(*constant, operator="Gemm").model(), table("Gemm", ["**", "{0,1}"]))
    gemms = [node for node in legal.graph.node if node.op_type == "Gemm"]
    assert [[each.i for each in node.attribute if each.name == "transB"] for node in gemms] == [[1]] * len(constant)


def quantized_product() -> Net:
    net = Net()
    weight = net.constant(np.arange(63, dtype=np.int8).reshape(7, 9))
    scaled = net.node("DequantizeLinear", weight, net.constant(np.float32(0.5)))
    net.output(net.node("MatMul", net.input("x", (5, 7)), scaled))
    return net


@pytest.mark.parametrize(
    ("net", "before"),
    [(products(True), []), (products(False), ["Transpose"]), (quantized_product(), ["DequantizeLinear"])],
    ids=["stored", "computed when it runs", "computed before"],
)
def test_a_rewrite_may_write_what_the_operator_cannot(net: Net, before: list[str]) -> None:
    class Columns(Backend):
        """The right operand of a product is column-major: it is a Gemm with transB."""

        name = "columns"

        def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
            is_column_major = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
            return "{1,0}" if n == 1 and is_column_major else super().nth_input_layout_requirements(node, n)

        def implementations(self, node: ir.Node) -> Any:
            if node.op_type != "MatMul" or any(rank_of(value) != 2 for value in node.inputs):
                return super().implementations(node)
            any_order = Layout.any(2)
            return [Implementation((any_order, Layout.parse("{0,1}")), (any_order,), rewrite=write)]

    def write(writing: Writing) -> None:
        assert writing.shape_of(1) == (9, 7)
        shape = writing.shape_of(0, is_result=True)
        writing.set_result(0, writing.emit("Gemm", [writing.read(0), writing.read(1)], {"transB": 1}, shape=shape))

    legal = assert_legal_twice(net.model(), Columns)
    assert [node.op_type for node in legal.graph.node] == [*before, "Gemm"]


def added(*, constant: bool) -> Net:
    net = Net()
    x = net.input("x", (5, 7))
    net.output(net.node("Add", x, net.weight(5, 7) if constant else net.input("v", (5, 7))))
    return net


@pytest.mark.parametrize("constant", [True, False])
def test_a_constant_has_the_order_of_its_requirement(constant: bool) -> None:
    legal = assert_legal_twice(added(constant=constant).model(), table("Add", ["**", "{0,1}"]))
    assert [node.op_type for node in legal.graph.node].count("Transpose") == 2 + (not constant)


@pytest.mark.parametrize(("noted", "is_wrong"), [(";1,0", False), (";0,1", True), ("", True)])
def test_the_verifier_compares_the_noted_order_of_a_constant_with_its_data(noted: str, is_wrong: bool) -> None:
    model = added(constant=True).model()
    backend = table("Add", ["**", "{0,1}"])
    legal, _ = relayout.legalize(model, backend)
    node = next(node for node in legal.graph.node if node.op_type == "Add")
    [entry] = node.metadata_props
    entry.value = noted
    assert relayout.verify(legal, backend, against=model).passed is not is_wrong
    entry.value = ";1,0"
    [constant] = legal.graph.initializer
    constant.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(constant)[::-1])))
    assert not relayout.verify(legal, backend, against=model).passed


def test_a_requirement_of_a_result_alone_holds_in_a_second_run() -> None:
    """The node notes no order of its operands then: the values do."""
    net = Net()
    net.output(net.node("Neg", net.node("Relu", net.input("x", (2, 3, 4, 5)))))
    legal = assert_legal_twice(net.model(), table("Relu", results=["{1,3,2,0}"]))
    assert [node.op_type for node in legal.graph.node].count("Transpose") == 2
