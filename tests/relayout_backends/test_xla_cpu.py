"""`xla-cpu`: constants that are column-major, and dots of such constants with the same numbers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers, run
from single_node_rewriter import OneNode

import relayout
from relayout.backend.calls import ask
from relayout.errors import UsageError
from relayout_backends.xla_cpu import XlaCpu

Array = np.ndarray[Any, Any]


def finished(net: Net) -> tuple[onnx.ModelProto, bool]:
    """The model as the backend leaves it, and whether it says that it changed anything."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(net.model()))
    changed = XlaCpu().finish(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto, changed


def column_major(net: Net) -> list[bool]:
    """For each node whether its constant came to be column-major."""
    source = ir.to_proto(ir.from_proto(net.model()))
    model, changed = finished(net)
    turned = [a.attribute != b.attribute for a, b in zip(source.graph.node, model.graph.node, strict=True)]
    assert changed == any(turned)
    return turned


def test_a_constant_that_dots_alone_read_is_column_major() -> None:
    net = Net()
    weight = net.weight(4, 4)
    value = net.node("MatMul", net.input("x", (2, 4)), weight)
    net.output(net.node("Gemm", value, weight))
    assert column_major(net) == [True, True]


def test_a_constant_in_an_attribute_is_column_major() -> None:
    net = Net()
    matrix = np.arange(20, dtype=np.float32).reshape(4, 5)
    weight = net.node("Constant", value=onnx.numpy_helper.from_array(matrix))
    net.output(net.node("MatMul", net.input("x", (2, 4)), weight))
    legal, _ = relayout.legalize(net.model(), XlaCpu)
    held, dot = legal.graph.node
    assert np.array_equal(onnx.numpy_helper.to_array(held.attribute[0].t), matrix.T)
    assert dot.op_type == "Gemm"
    assert_same_numbers(net.model(), legal)
    again, _ = relayout.legalize(legal, XlaCpu)
    assert list(again.graph.node) == list(legal.graph.node)


def test_a_constant_that_another_operator_reads_too_stays() -> None:
    net = Net()
    weight = net.weight(4, 4)
    net.output(net.node("MatMul", net.input("x", (2, 4)), weight))
    net.output(net.node("Relu", weight))
    assert column_major(net) == [False, False]


def test_a_constant_may_be_on_the_left_or_on_both_sides() -> None:
    net = Net()
    weight = net.weight(4, 4)
    net.output(net.node("MatMul", net.weight(3, 4), net.input("x", (4, 2))))
    net.output(net.node("MatMul", net.input("y", (4, 4)), weight))
    net.output(net.node("MatMul", weight, weight))
    assert column_major(net) == [True, True, True]
    model, _ = finished(net)
    assert_same_numbers(net.model(), model)
    assert [{a.name for a in node.attribute} for node in model.graph.node] == [
        {"transA"},
        {"transB"},
        {"transA", "transB"},
    ]


@pytest.mark.parametrize("constants", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("terms", [*product(("ab", "ba"), ("bc", "cb"), ("ac", "ca"))])
@pytest.mark.parametrize("are_exchanged", [False, True])
def test_a_product_of_two_matrices_in_any_order_of_its_axes_is_a_gemm(
    constants: tuple[bool, bool], terms: tuple[str, str, str], are_exchanged: bool
) -> None:
    net = Net()
    names = terms[:2]
    operands = [
        net.weight(4, 4) if constant else net.input(name, (4, 4))
        for name, constant in zip(names, constants, strict=True)
    ]
    if are_exchanged:
        operands, names = operands[::-1], names[::-1]
    made = net.node("Einsum", *operands, equation=f"{names[0]},{names[1]}->{terms[2]}")
    net.output(net.node("Add", made, net.input("x", (4, 4))))
    legal, _ = relayout.legalize(net.model(), XlaCpu)
    assert {node.op_type for node in legal.graph.node} <= {"Gemm", "MatMul", "Add"}
    assert_same_numbers(net.model(), legal)


def test_a_product_with_columns_first_reads_its_other_operand_without_a_conversion() -> None:
    net = Net()
    turned = net.transpose(net.input("x", (4, 5)), 1, 0)
    net.output(net.node("Einsum", net.weight(5, 3), turned, equation="eb,ed->db"))
    legal, report = relayout.legalize(net.model(), XlaCpu)
    assert (report.cost, [node.op_type for node in legal.graph.node]) == (0, ["Gemm"])
    assert_same_numbers(net.model(), legal)


def summand(net: Net) -> None:
    net.output(net.node("Gemm", net.input("x", (2, 4)), net.input("y", (4, 5)), net.weight(2, 5)))


def batch_of_matrices(net: Net) -> None:
    net.output(net.node("MatMul", net.input("x", (3, 2, 4)), net.weight(3, 4, 5)))


def no_constant(net: Net) -> None:
    net.output(net.node("MatMul", net.input("x", (2, 4)), net.input("w", (4, 5))))


def transposed_already(net: Net) -> None:
    net.output(net.node("Gemm", net.input("x", (2, 4)), net.weight(5, 4), transB=1))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (summand, [False]),
        (batch_of_matrices, [False]),
        (no_constant, [False]),
        (transposed_already, [False]),
    ],
)
def test_other_operands_stay_as_they_are(build: Any, expected: list[bool]) -> None:
    net = Net()
    build(net)
    assert column_major(net) == expected


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(
    ("operator", "left", "attributes", "summand"),
    [
        ("MatMul", (3, 4), {}, None),
        ("MatMul", (4,), {}, None),
        ("MatMul", (2, 3, 4), {}, None),
        ("MatMul", (2, 1, 3, 4), {}, None),
        ("Gemm", (3, 4), {"alpha": 2.0}, (5,)),
        ("Gemm", (4, 3), {"transA": 1, "beta": 0.5}, (3, 1)),
    ],
)
def test_a_dot_of_a_column_major_constant_gives_the_same(
    operator: str, left: tuple[int, ...], attributes: dict[str, Any], summand: tuple[int, ...] | None, opset: int
) -> None:
    net = Net(opset)
    rest = [] if summand is None else [net.weight(*summand)]
    net.output(net.node(operator, net.input("x", left), net.weight(4, 5), *rest, **attributes))
    x = np.random.default_rng(0).standard_normal(left).astype(np.float32)
    (expected,) = run(net.model(), {"x": x})
    model, changed = finished(net)
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-5)
    shapes = {tuple(constant.dims) for constant in model.graph.initializer}
    # Before Einsum there is no word for other than two matrices.
    assert changed == ((5, 4) in shapes) == (opset >= 12 or len(left) == 2)
    assert model.graph.initializer[0].name == "weight_0"


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("right", [(4, 3), (4,), (2, 4, 3), (2, 1, 4, 3)])
def test_a_column_major_constant_on_the_left_gives_the_same(right: tuple[int, ...], opset: int) -> None:
    net = Net(opset)
    net.output(net.node("MatMul", net.weight(5, 4), net.input("x", right)))
    model, changed = finished(net)
    assert_same_numbers(net.model(), model)
    assert changed == ((4, 5) in {tuple(constant.dims) for constant in model.graph.initializer})
    assert changed == (opset >= 12 or len(right) == 2)


def test_a_summand_of_zeros_takes_no_name_that_is_taken() -> None:
    net = Net(9)
    net.output(net.node("MatMul", net.input("matmul_0_zero", (3, 4)), net.weight(4, 5)))
    model, _ = finished(net)
    assert model.graph.node[0].input[2] == "matmul_0_zero_1"


def test_a_product_of_integers_stays_for_gemm_has_few_of_them() -> None:
    net = Net()
    net.output(
        net.node("MatMul", net.input("x", (3, 4), onnx.TensorProto.INT64), net.constant(np.ones((4, 5), np.int64))),
        onnx.TensorProto.INT64,
    )
    assert not finished(net)[1]


def test_a_constant_that_the_model_computes_stays() -> None:
    net = Net()
    net.output(net.node("MatMul", net.input("x", (3, 4)), net.transpose(net.weight(5, 4), 1, 0)))
    legal, _ = relayout.legalize(net.model(), XlaCpu)
    assert_same_numbers(net.model(), legal)
    assert [node.op_type for node in legal.graph.node] == ["Transpose", "MatMul"]


CALLS = {"com.acme::Convolve": {"operands": ["{1,3,2,0}", "{0,1,3,2}"], "result": "{1,3,2,0}"}}


def test_a_custom_call_reads_its_operands_in_the_required_layouts() -> None:
    net = Net()
    model = net.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("x", 1, (1, 3, 8, 9)))
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", 1, (1, 5, 8, 9)))
    weight = np.arange(5 * 3 * 2 * 4, dtype=np.float32).reshape(5, 3, 2, 4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    made = onnx.helper.make_node("Convolve", ["x", "w", ""], ["y"], domain="com.acme", stride=2)
    model.graph.node.append(made)
    model.opset_import.append(onnx.helper.make_opsetid("com.acme", 3))
    node = ir.from_proto(model).graph[0]
    (way,) = ask(XlaCpu(custom_calls=CALLS), node)
    assert [str(layout) for layout in (*way.inputs, *way.results)] == ["{1,3,2,0}", "{0,1,3,2}", "", "{1,3,2,0}"]
    writing = OneNode(node, way, "0123")
    assert way.rewrite is not None
    way.rewrite(writing)
    (call,) = writing.nodes
    assert writing.feeds[0].shape == ir.Shape([1, 8, 9, 3])
    assert call.inputs[1] is not None
    assert call.inputs[1].const_value is not None
    assert np.array_equal(call.inputs[1].const_value.numpy(), weight.transpose(2, 3, 1, 0))
    assert call.outputs[0].shape == ir.Shape([1, 8, 9, 5])
    assert call.attributes["operand_layout_constraints"].as_strings() == ("{1,3,2,0}", "{0,1,3,2}")
    assert call.attributes["stride"].as_int() == 2
    assert writing.imports["com.acme"] == 3
    # A node that is written so has no further requirement.
    assert [way.rewrite for way in ask(XlaCpu(custom_calls=CALLS), call)] == [None]


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_custom_call_reads_a_constant_in_the_required_layout_be_it_stored_or_computed(is_computed: bool) -> None:
    weight = np.arange(12, dtype=np.int8).reshape(3, 4)
    net = Net()
    if is_computed:
        operand = net.node("DequantizeLinear", net.constant(weight), net.constant(np.float32(2)))
    else:
        operand = net.constant(weight.astype(np.float32) * 2)
    net.node("Convolve", net.input("x", (5, 3)), operand, domain="com.acme")
    model = net._model([onnx.helper.make_tensor_value_info("convolve_1" if is_computed else "convolve_0", 1, (5, 4))])
    calls = {"com.acme::Convolve": {"operands": ["{1,0}", "{0,1}"]}}
    legal, _ = relayout.legalize(model, XlaCpu(custom_calls=calls))
    [call] = [node for node in legal.graph.node if node.domain == "com.acme"]
    legal.graph.node.remove(call)
    del legal.graph.output[:]
    legal.graph.output.append(onnx.helper.make_tensor_value_info(call.input[1], 1, (4, 3)))
    [read] = run(legal, {"x": np.zeros((5, 3), np.float32)})
    assert np.array_equal(read, weight.T * np.float32(2))


@pytest.mark.parametrize(
    ("layouts", "found"),
    [
        ({"operand": ["{1,0}"]}, "operand"),
        ({"operands": "{1,0}"}, "'{1,0}' and None"),
        ({"operands": ["NHWC"]}, "NHWC"),
        ({"operands": ["{1,1}"]}, "'1' twice in '{1,1}', column 4"),
    ],
)
def test_an_invalid_constraint_is_an_error(layouts: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError) as caught:
        XlaCpu(custom_calls={"com.acme::Convolve": layouts})
    assert caught.value.found == found
