"""XLA's layout constraints: column-major constants of dots, operands of custom calls, minor to major."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import TO_NCHW, TO_NHWC, checked, operators

import relayout
from relayout import Layout, Report
from relayout_backends.xla_cpu import XlaCpu


def converted(net: Net, backend: object = XlaCpu) -> tuple[onnx.ModelProto, Report]:
    """The legal model, proved optimal, without a finding of the verifier, and numerically the same."""
    model = net.model()
    legal, report = checked(model, backend)
    assert_same_numbers(model, legal)
    return legal, report


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {constant.name: onnx.numpy_helper.to_array(constant) for constant in model.graph.initializer}


def right_operands(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    """The shapes of the constants on the right of dots, in order."""
    found = constants(model)
    return [found[n.input[1]].shape for n in model.graph.node if n.op_type in ("MatMul", "Gemm", "Einsum")]


# "constant arrays to be column major when all of their users are dot operations"


def test_a_constant_that_dots_alone_read_is_column_major() -> None:
    net = Net()
    value = net.node("Relu", net.node("MatMul", net.input("x", (8, 64)), net.weight(64, 32)))
    net.output(net.node("Gemm", value, net.weight(32, 10), net.weight(10)))
    legal, report = converted(net)
    assert operators(legal) == ["Gemm", "Relu", "Gemm"]
    assert right_operands(legal) == [(32, 64), (10, 32)]
    assert report.after.transposes == 0


def test_a_constant_with_another_reader_stays() -> None:
    net = Net()
    weight = net.weight(32, 32)
    net.output(net.node("MatMul", net.input("x", (8, 32)), weight))
    net.output(net.node("Mul", net.input("y", (32, 32)), weight))
    assert operators(converted(net)[0]) == ["MatMul", "Mul"]


def test_one_constant_of_several_dots_is_transposed_once() -> None:
    net = Net()
    weight = net.weight(16, 16)
    value = net.node("MatMul", net.input("x", (8, 16)), weight)
    net.output(net.node("MatMul", value, weight))
    legal, _ = converted(net)
    assert operators(legal) == ["Gemm", "Gemm"]
    (only,) = constants(legal).values()
    assert np.array_equal(only, constants(net.model())[weight].T)


def test_a_dot_of_more_dimensions_is_written_as_einsum() -> None:
    net = Net()
    net.output(net.node("MatMul", net.input("x", ("batch", "length", 64)), net.weight(64, 32)))
    legal, _ = converted(net)
    assert operators(legal) == ["Einsum"]
    assert right_operands(legal) == [(32, 64)]


def test_an_einsum_that_may_stretch_an_axis_is_no_dot() -> None:
    net = Net()
    x = net.input("x", (6, 3, 4, "W"))
    matrix = net.node("Reshape", net.weight(6), net.constant([2, 3]))
    net.output(net.node("Einsum", x, matrix, equation="nchw,wk->nchk"))
    model = net.model()
    legal, _ = relayout.legalize(model, XlaCpu())
    assert operators(legal) == ["Reshape", "Einsum"]
    for wide in (1, 2):
        feeds = {"x": np.random.default_rng(0).standard_normal((6, 3, 4, wide)).astype(np.float32)}
        assert_same_numbers(model, legal, feeds)


def test_the_left_operand_of_a_gemm_may_come_transposed() -> None:
    net = Net()
    value = net.transpose(net.node("Relu", net.input("x", (64, 8))), 1, 0)
    net.output(net.node("Gemm", value, net.weight(64, 32), net.weight(32)))
    legal, report = converted(net)
    assert report.after.transposes == 0
    assert right_operands(legal) == [(32, 64)]


def test_legalizing_again_changes_nothing() -> None:
    net = Net()
    net.output(net.node("Gemm", net.node("MatMul", net.input("x", (8, 64)), net.weight(64, 32)), net.weight(32, 10)))
    legal, _ = converted(net)
    again, _ = relayout.legalize(legal, XlaCpu)
    assert [node.SerializeToString() for node in again.graph.node] == [
        node.SerializeToString() for node in legal.graph.node
    ]


def test_other_operators_are_as_in_onnx() -> None:
    """XLA's CPU backend has no wish for a convolution; transposes that undo each other go all the same."""
    net = Net()
    value = net.transpose(net.transpose(net.input("x", (1, 3, 8, 8)), *TO_NHWC), *TO_NCHW)
    net.output(net.conv(value, 3, 4))
    assert operators(converted(net)[0]) == ["Conv"]


# "layout constraints on the cudnn custom-call instruction"

CALLS = {"com.acme::Convolve": {"operands": ["{1,3,2,0}", "{0,1,3,2}"], "result": "{1,3,2,0}"}}


def custom(count: int) -> onnx.ModelProto:
    """Custom convolutions, one after the other, with a Relu after each."""
    net = Net()
    value = net.input("x", (1, 4, 8, 8))
    nodes: list[Any] = []
    for i in range(count):
        made = onnx.helper.make_node("Convolve", [value, net.weight(4, 4, 3, 3)], [f"c{i}"], f"c{i}", domain="com.acme")
        nodes += [made, onnx.helper.make_node("Relu", [f"c{i}"], [f"r{i}"])]
        value = f"r{i}"
    model = net.model()
    model.graph.node.extend(nodes)
    shapes = [onnx.helper.make_tensor_value_info(name, 1, (1, 4, 8, 8)) for n in nodes for name in n.output]
    model.graph.value_info.extend(shapes[:-1])
    model.graph.output.append(shapes[-1])
    model.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    return model


def test_a_custom_call_gets_its_operands_in_the_required_layouts() -> None:
    legal, report = relayout.legalize(custom(3), XlaCpu(custom_calls=CALLS))
    # One transpose in and one out: between the calls everything follows.
    assert operators(legal).count("Transpose") == report.after.transposes == 2
    call = next(node for node in legal.graph.node if node.op_type == "Convolve")
    said = {a.name: onnx.helper.get_attribute_value(a) for a in call.attribute}
    assert said == {"operand_layout_constraints": [b"{1,3,2,0}", b"{0,1,3,2}"], "result_layout": b"{1,3,2,0}"}
    source = custom(3)
    (kernel,) = (c for name, c in constants(legal).items() if name in call.input)
    assert np.array_equal(kernel, constants(source)["weight_0"].transpose(2, 3, 1, 0))


# Minor to major


@pytest.mark.parametrize(("minor_to_major", "letters"), [("{1,3,2,0}", "NHWC"), ("{3,2,1,0}", "NCHW")])
def test_layouts_are_read_and_written_minor_to_major(minor_to_major: str, letters: str) -> None:
    layout = Layout.from_minor_to_major(minor_to_major, "NCHW")
    assert str(layout) == letters
    assert layout.to_minor_to_major("NCHW") == minor_to_major


def test_an_input_layout_may_be_minor_to_major() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 8, 9)), 3, 4))
    legal, _ = relayout.legalize(net.model(), "nhwc", input_layouts={"x": "{1,3,2,0}"})
    assert [d.dim_value for d in legal.graph.input[0].type.tensor_type.shape.dim] == [1, 8, 9, 3]
