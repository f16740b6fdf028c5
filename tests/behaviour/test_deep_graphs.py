"""Graphs and function calls of any depth are processed without recursion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import Net, assert_same_numbers
from shallow_stack import shallow_stack

from relayout import explain, legalize, verify
from relayout.errors import InputError
from relayout.model.io import read_model, to_json

DEPTH = 220
# Enough for what the stages and the libraries below them need, and not for a call for each node.
ROOM = DEPTH - 50
BACKENDS = ["canonical", "onnx", "tpu", "x86-nchwc", "xla-cpu"]
UNARY = ["Relu", "Sigmoid", "Neg", "Tanh"]


def chain(net: Net, value: str, *operators: str, depth: int) -> str:
    for place in range(depth):
        value = net.node(operators[place % len(operators)], value)
    return value


def elementwise(depth: int) -> Net:
    net = Net()
    data = net.conv(net.transpose(net.input("x", (1, 8, 8, 4)), 0, 3, 1, 2), 4, 4, 1)
    net.output(net.transpose(net.conv(chain(net, data, *UNARY, depth=depth), 4, 4, 1), 0, 2, 3, 1))
    return net


def residual(depth: int) -> Net:
    net = Net()
    value = net.transpose(net.input("x", (1, 4, 4, 2)), 0, 3, 1, 2)
    weight = net.constant(np.full((2, 2, 1, 1), 0.01, np.float32))
    for _ in range(depth // 2):
        value = net.node("Add", value, net.node("Conv", value, weight))
    net.output(net.transpose(value, 0, 2, 3, 1))
    return net


def views(depth: int) -> Net:
    """Views that come back to the beginning, and then views that never do."""
    net = Net()
    value = net.conv(net.input("x", (1, 4, 6, 8)), 4, 4, 1)
    flat, merged, square = net.constant([1, 48, 4]), net.constant([1, 24, 8]), net.constant([1, 6, 8, 4])
    for _ in range(depth // 8):
        last = net.node("Reshape", net.transpose(value, 0, 2, 3, 1), flat)
        value = net.transpose(net.node("Reshape", last, square), 0, 3, 1, 2)
    for _ in range(depth // 8):
        value = net.node("Relu", net.node("Reshape", net.node("Reshape", value, merged), flat))
        value = net.transpose(net.node("Reshape", value, square), 0, 3, 1, 2)
    net.output(net.node("Relu", value))
    return net


def computed_kernel(depth: int) -> Net:
    net = Net()
    kernel = chain(net, net.weight(4, 4, 1, 1), *UNARY, depth=depth)
    net.output(net.transpose(net.node("Conv", net.input("x", (1, 4, 8, 8)), kernel), 0, 2, 3, 1))
    return net


def viewed_kernel(depth: int) -> Net:
    net = Net()
    kernel, square = net.node("Relu", net.weight(4, 4, 2, 2)), net.constant([4, 4, 2, 2])
    for _ in range(depth // 2):
        kernel = net.node("Reshape", net.transpose(kernel, 3, 2, 0, 1), square)
    net.output(net.transpose(net.node("Conv", net.input("x", (1, 4, 8, 8)), kernel), 0, 2, 3, 1))
    return net


def computed_dot(depth: int) -> Net:
    net = Net()
    matrix = chain(net, net.weight(4, 5), *UNARY, depth=depth)
    net.output(net.node("Relu", net.node("MatMul", net.input("x", (3, 4)), matrix)))
    return net


def quantized(depth: int) -> Net:
    """Data and a kernel that go through steps of quantization."""
    net = Net()
    scale, zero = net.constant(np.float32(0.1)), net.constant(np.uint8(0))

    def steps(value: str) -> str:
        for _ in range(depth // 2):
            value = net.node("DequantizeLinear", net.node("QuantizeLinear", value, scale, zero), scale, zero)
        return value

    data = steps(net.transpose(net.input("x", (1, 8, 8, 4)), 0, 3, 1, 2))
    net.output(net.transpose(net.node("Conv", data, steps(net.weight(4, 4, 1, 1))), 0, 2, 3, 1))
    return net


def concatenations(depth: int) -> Net:
    net = Net(opset=13)
    value = net.transpose(net.input("x", (1, 3, 3, 2)), 0, 3, 1, 2)
    for _ in range(depth // 2):
        first, second = net.node("Split", value, axis=1, results=2)
        value = net.node("Concat", second, first, axis=1)
    net.output(net.transpose(value, 0, 2, 3, 1))
    return net


def shape_arithmetic(depth: int) -> Net:
    net = Net()
    data = net.transpose(net.input("x", (1, 8, 8, 4)), 0, 3, 1, 2)
    shape = chain(net, net.node("Shape", data), "Neg", depth=depth - depth % 2)
    net.output(net.node("Reshape", net.conv(data, 4, 4, 1), shape))
    return net


def products(depth: int) -> Net:
    net = Net()
    value, matrix = net.input("x", (2, 3, 3)), net.constant(np.eye(3, dtype=np.float32)[::-1] * 0.9)
    for _ in range(depth // 2):
        value = net.transpose(net.node("MatMul", value, matrix), 0, 2, 1)
    net.output(net.node("Relu", value))
    return net


KINDS = [
    computed_dot,
    computed_kernel,
    concatenations,
    elementwise,
    products,
    quantized,
    residual,
    shape_arithmetic,
    viewed_kernel,
    views,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_a_graph_may_be_deeper_than_the_stack(kind: Callable[[int], Net], backend: str) -> None:
    legalize(kind(4).model(), backend)  # imports what it needs, which takes room of its own
    model = kind(DEPTH).model()
    with shallow_stack(ROOM):
        legal, _ = legalize(model, backend)
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("kind", [computed_kernel, elementwise, views], ids=lambda kind: str(kind.__name__))
def test_a_deep_graph_is_written_as_json_legalized_again_verified_and_explained(kind: Callable[[int], Net]) -> None:
    def through(net: Net) -> None:
        legal, _ = legalize(to_json(read_model(net.model())), "nhwc")
        legalize(legal, "nhwc")
        assert verify(legal, "nhwc").passed
        explain(legal, "nhwc", limit=1)

    through(kind(4))
    with shallow_stack(ROOM):
        through(kind(DEPTH))


def calling(depth: int, *, last: str) -> onnx.ModelProto:
    """Functions that each call the next one."""
    header = '<ir_version: 10, opset_import: ["" : 20, "own" : 1]>'
    graph = "net (float[2,3] x) => (float[2,3] y) { y = own.F0 (x) }"
    opsets = '<domain: "own", opset_import: ["" : 20, "own" : 1]>'
    bodies = [f"{opsets} F{n} (a) => (b) {{ c = Relu (a) b = own.F{n + 1} (c) }}" for n in range(depth)]
    bodies.append(f"{opsets} F{depth} (a) => (b) {{ b = {last} (a) }}")
    return onnx.parser.parse_model("\n".join((header, graph, *bodies)))


def test_functions_may_call_each_other_to_any_depth() -> None:
    legalize(calling(2, last="Neg"))
    with shallow_stack(ROOM):
        legal, report = legalize(calling(DEPTH, last="Neg"))
    assert report.after.nodes == DEPTH + 1
    assert not legal.functions


def test_a_circle_of_many_functions_is_a_fault_of_the_model() -> None:
    with shallow_stack(ROOM), pytest.raises(InputError, match="a function calls itself") as caught:
        legalize(calling(DEPTH, last="own.F7"))
    assert caught.value.where == "function 'own::F7'"
    assert caught.value.found.startswith("F210 -> F211")
    assert caught.value.found.endswith("F220 -> F7")


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_long_way_between_blocked_convolutions_is_walked_once(is_joined: bool) -> None:
    """Also where it branches and joins, which has a path for each choice of branches."""
    net = Net()
    value = net.conv(net.input("x", (1, 32, 8, 8)), 32, 32)
    for _ in range(60 if is_joined else DEPTH):
        value = net.node("Mul", value, net.node("Sigmoid", value)) if is_joined else net.node("Sigmoid", value)
    net.output(net.conv(value, 32, 32))
    with shallow_stack(ROOM):
        legal, first = legalize(net.model(), "x86-nchwc")
        _, second = legalize(legal, "x86-nchwc")
    assert {node.domain for node in legal.graph.node} >= {"com.microsoft.nchwc"}
    assert first.cost == second.cost
