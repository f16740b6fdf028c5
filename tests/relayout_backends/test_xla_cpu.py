"""`xla-cpu`: which constants are column-major, and each dot of such a constant gives the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, run
from writing import OneNode

from relayout.answers import ask
from relayout.errors import UsageError
from relayout_backends.xla_cpu import XlaCpu

Array = np.ndarray[Any, Any]


def nodes(net: Net) -> list[ir.Node]:
    return list(ir.from_proto(onnx.shape_inference.infer_shapes(net.model())).graph)


def column_major(net: Net) -> list[bool]:
    """For each node whether its constant is to be column-major."""
    return [ask(XlaCpu(), node)[0].rewrite is not None for node in nodes(net)]


def test_a_constant_that_dots_alone_read_is_column_major() -> None:
    net = Net()
    weight = net.weight(4, 4)
    value = net.node("MatMul", net.input("x", (2, 4)), weight)
    net.output(net.node("Gemm", value, weight))
    assert column_major(net) == [True, True]


def test_a_constant_that_another_operator_reads_too_stays() -> None:
    net = Net()
    weight = net.weight(4, 4)
    net.output(net.node("MatMul", net.input("x", (2, 4)), weight))
    net.output(net.node("Relu", weight))
    assert column_major(net) == [False, False]


def left_operand(net: Net) -> None:
    net.output(net.node("MatMul", net.weight(4, 4), net.input("x", (4, 2))))


def both_operands(net: Net) -> None:
    weight = net.weight(4, 4)
    net.output(net.node("MatMul", net.node("MatMul", net.input("x", (4, 4)), net.weight(4, 4)), weight))
    net.output(net.node("MatMul", weight, weight))


def batch_of_matrices(net: Net) -> None:
    net.output(net.node("MatMul", net.input("x", (3, 2, 4)), net.weight(3, 4, 5)))


def no_constant(net: Net) -> None:
    net.output(net.node("MatMul", net.input("x", (2, 4)), net.input("w", (4, 5))))


def transposed_already(net: Net) -> None:
    net.output(net.node("Gemm", net.input("x", (2, 4)), net.weight(5, 4), transB=1))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (left_operand, [False]),
        (both_operands, [True, False, False]),
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
    ways = ask(XlaCpu(), nodes(net)[0])
    if opset < 12 and len(left) > 2:
        assert [way.rewrite for way in ways] == [None]
        return
    x = np.random.default_rng(0).standard_normal(left).astype(np.float32)
    (expected,) = run(net.model(), {"x": x})
    assert len(ways) == (2 if operator == "Gemm" else 1)
    for way in ways:
        (node,) = nodes(net)
        writing = OneNode(node, way, "01", opset)
        found = writing.run({0: x})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        constant = next(value for value in writing.initializers if value.shape == ir.Shape([5, 4]))
        assert constant in writing.nodes[-1].inputs


CALLS = {"com.acme::Convolve": {"operands": ["{1,3,2,0}", "{0,1,3,2}"], "result": "{1,3,2,0}"}}


def test_a_custom_call_reads_its_operands_as_they_must_lie() -> None:
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
    # What is written so is asked for nothing more.
    assert [way.rewrite for way in ask(XlaCpu(custom_calls=CALLS), call)] == [None]


@pytest.mark.parametrize(
    ("layouts", "found"),
    [
        ({"operand": ["{1,0}"]}, "operand"),
        ({"operands": "{1,0}"}, "'{1,0}' and None"),
        ({"operands": ["NHWC"]}, "NHWC"),
        ({"operands": ["{1,1}"]}, "'1' twice in '{1,1}', column 4"),
    ],
)
def test_what_is_no_constraint_is_said(layouts: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError) as caught:
        XlaCpu(custom_calls={"com.acme::Convolve": layouts})
    assert caught.value.found == found
