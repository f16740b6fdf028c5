"""`x86-nchwc`: products read their operands without a conversion, with the same numbers."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers, session
from onnx import helper
from single_node_rewriter import OneNode

import relayout
from relayout.backend.calls import ask
from relayout.layout.layout import Layout
from relayout.model.io import read_model
from relayout_backends.x86_nchwc import X86Nchwc

pytest.importorskip("onnxruntime")

BACKEND = X86Nchwc(block=16)
ORDERS = {"as it is": (0, 1, 2, 3), "swapped": (0, 1, 3, 2), "behind": (2, 0, 1, 3), "both": (3, 0, 1, 2)}


def multiplied(
    left: tuple[int, ...],
    right: tuple[int, ...],
    batch: tuple[int, ...] = (2, 3),
    result: tuple[int, ...] | None = None,
) -> onnx.ModelProto:
    """[batch, 5, 4] times [batch, 4, 7], given with their axes in these orders and turned by Transposes, as is the
    product, to be given in the order `result`."""
    net = Net()
    operands = []
    for name, order, shape in (("a", left, (*batch, 5, 4)), ("b", right, (*batch, 4, 7))):
        given = net.node("Relu", net.input(name, [shape[axis] for axis in order]))
        operands.append(net.transpose(given, *np.argsort(order)))
    product = net.node("MatMul", *operands)
    net.output(net.transpose(product, *result) if result is not None else product)
    return net.model()


def attention(images: int) -> onnx.ModelProto:
    """Three projections of [images, 10, 12] into three heads, what they give, and a projection of that."""
    net = Net(opset=17)
    x = net.input("x", (images, 10, 12))
    heads = []
    for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        projected = net.node("Add", net.node("MatMul", x, net.weight(12, 12)), net.weight(12))
        split = net.node("Reshape", projected, net.constant(np.array([images, 10, 3, 4], np.int64)))
        heads.append(net.transpose(split, *order))
    queries, keys, values = heads
    scaled = net.node("Mul", net.node("MatMul", queries, keys), net.constant(np.float32(0.25)))
    mixed = net.transpose(net.node("MatMul", net.node("Softmax", scaled, axis=-1), values), 0, 2, 1, 3)
    merged = net.node("Reshape", mixed, net.constant(np.array([images, 10, 12], np.int64)))
    net.output(net.node("MatMul", merged, net.weight(12, 12)))
    return net.model()


@pytest.mark.parametrize(("left", "right"), list(product(ORDERS, ORDERS)))
def test_a_product_reads_either_operand_in_four_orders(left: str, right: str) -> None:
    source = multiplied(ORDERS[left], ORDERS[right])
    legal, report = relayout.legalize(source, BACKEND, check=True)
    assert report.after.transposes == 0
    assert_same_numbers(source, legal)
    fused = [node for node in legal.graph.node if node.op_type == "FusedMatMul"]
    assert len(fused) == ((left, right) != ("as it is", "as it is"))
    assert report.verification is not None
    assert report.verification.findings == ()


@pytest.mark.parametrize(("left", "right"), list(product(ORDERS, ORDERS)))
def test_a_product_gives_its_result_swapped(left: str, right: str) -> None:
    source = multiplied(ORDERS[left], ORDERS[right], result=ORDERS["swapped"])
    legal, report = relayout.legalize(source, BACKEND, check=True)
    assert report.after.transposes == 0
    assert_same_numbers(source, legal)
    fused = [node for node in legal.graph.node if node.op_type == "FusedMatMul"]
    assert len(fused) == ((left, right) != ("swapped", "swapped"))
    assert report.verification is not None
    assert report.verification.findings == ()
    again, _ = relayout.legalize(legal, BACKEND)
    assert list(again.graph.node) == list(legal.graph.node)


def test_three_axes_are_enough_and_two_are_not() -> None:
    for batch, ways in (((3,), 31), ((), 1)):
        axes = tuple(range(len(batch) + 2))
        (node,) = [n for n in read_model(multiplied(axes, axes, batch)).graph if n.op_type == "MatMul"]
        assert len(ask(BACKEND, node)) == ways


def test_a_batch_that_is_broadcast_or_a_constant_is_multiplied_as_it_is() -> None:
    net = Net()
    x = net.input("x", (2, 3, 5, 4))
    net.output(net.node("MatMul", x, net.input("one", (1, 3, 4, 7))))
    net.output(net.node("MatMul", x, net.weight(2, 3, 4, 7)))
    net.output(net.node("MatMul", x, net.input("matrix", (4, 7))))
    for node in read_model(net.model()).graph:
        assert len(ask(BACKEND, node)) == 1


@pytest.mark.parametrize("flags", range(16))
def test_a_fused_product_of_the_source_has_all_forms_at_their_costs(flags: int) -> None:
    chosen = {name: flags >> bit & 1 for bit, name in enumerate(("transA", "transB", "transBatchA", "transBatchB"))}
    rng, inputs = np.random.default_rng(flags), {}
    for name, matrix in (("A", [5, 4]), ("B", [4, 7])):
        outer, inner = reversed(matrix) if chosen[f"trans{name}"] else matrix
        shape = (outer, 2, 3, inner) if chosen[f"transBatch{name}"] else (2, 3, outer, inner)
        inputs[name] = rng.standard_normal(shape).astype(np.float32)
    declared = [helper.make_tensor_value_info(name, 1, array.shape) for name, array in inputs.items()]
    fused = helper.make_node("FusedMatMul", ["A", "B"], ["y"], domain="com.microsoft", alpha=0.5, **chosen)
    graph = helper.make_graph([fused], "one", declared, [helper.make_tensor_value_info("y", 1, (2, 3, 5, 7))])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    (expected,) = session(model).run(None, inputs)
    node = ir.from_proto(model).graph[0]
    ways = ask(BACKEND, node)
    assert len(ways) == 32
    (own,) = [way for way in ways if way.rewrite is None]
    assert own.inputs == (Layout.from_names("0123"),) * 2
    assert (own.cost > 0) == bool(chosen["transA"])
    assert min(way.cost for way in ways) == 0
    for way in ways:
        if way.rewrite is not None:
            (found,) = OneNode(node, way, "0123").run({0: inputs["A"], 1: inputs["B"]}).values()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("images", "transposes"), [(1, 1), (2, 4)])
def test_attention_over_one_image_reads_its_heads_where_they_are(images: int, transposes: int) -> None:
    source = attention(images)
    legal, report = relayout.legalize(source, BACKEND, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert report.after.transposes <= transposes
    assert_same_numbers(source, legal)
    again, _ = relayout.legalize(legal, BACKEND)
    assert [node.op_type for node in again.graph.node] == [node.op_type for node in legal.graph.node]


@pytest.mark.parametrize("operator", ["Relu", "Identity"])
def test_a_product_may_follow_a_thousand_nodes(operator: str) -> None:
    """Whether it hangs on constants alone is asked of all that is before it."""
    net = Net()
    value = net.input("x", (2, 3, 4))
    for _ in range(1_100):
        value = net.node(operator, value)
    product = net.node("MatMul", net.transpose(value, 0, 2, 1), net.weight(3, 5))
    net.output(net.transpose(net.node("Add", product, net.weight(5)), 0, 2, 1))
    assert relayout.legalize(net.model(), BACKEND)[1].status == "optimal"


def test_a_product_behind_the_strides_of_a_long_signal_has_a_price() -> None:
    """With 64 samples nothing is left of the signal, and with one frame less than none the price would be negative."""
    net = Net(17)
    signal = net.input("x", (1, 1, "samples"))
    for read, made, kernel, stride in ((1, 8, 10, 5), (8, 8, 8, 4), (8, 8, 4, 2)):
        signal = net.node("Conv", signal, net.weight(made, read, kernel), strides=[stride])
    net.output(net.node("MatMul", net.transpose(signal, 0, 2, 1), net.weight(8, 24)))
    legal, report = relayout.legalize(net.model(), "x86-nchwc", check=True)
    assert report.cost >= 0
    assert report.verification is not None
    assert report.verification.passed
    assert relayout.legalize(legal, "x86-nchwc")[0] == legal
