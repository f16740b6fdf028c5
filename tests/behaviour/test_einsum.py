"""An Einsum that sums products reads and writes each operand in an order of its own."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers

from relayout import legalize, verify

ATTENTION = "bqhd,bkhd->bhqk"
ORDERS = [*permutations(range(4))]


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def between_transposes(*orders: tuple[int, ...], equation: str = ATTENTION) -> onnx.ModelProto:
    """The scores of an attention, whose operands and result are transposed."""
    net = Net()
    shapes = [(2, 5, 3, 4), (2, 6, 3, 4)]
    read = []
    for n, (shape, order) in enumerate(zip(shapes, orders, strict=False)):
        given = net.node("Relu", net.input(f"x{n}", [shape[axis] for axis in order]))
        read.append(net.transpose(given, *np.argsort(order).tolist()))
    scores = net.node("Einsum", *read, equation=equation)
    net.output(net.node("Relu", net.transpose(scores, *orders[-1])))
    return net.model()


@pytest.mark.parametrize("seed", range(12))
def test_transposes_of_all_operands_are_written_into_the_equation(seed: int) -> None:
    chosen = np.random.default_rng(seed).integers(len(ORDERS), size=3)
    model = between_transposes(*[ORDERS[n] for n in chosen])
    legal, report = legalize(model, check=True)
    assert (operators(legal), report.cost, report.status) == (["Relu", "Relu", "Einsum", "Relu"], 0, "optimal")
    assert_same_numbers(model, legal)
    again, second = legalize(legal)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), 0)


def test_the_attention_of_jax_keeps_no_transpose() -> None:
    net = Net()
    query, key, value = (net.input(name, (2, 3, 5, 4)) for name in "qkv")
    read = [net.transpose(each, 0, 2, 1, 3) for each in (query, key, value)]
    scores = net.node("Softmax", net.node("Einsum", *read[:2], equation=ATTENTION), axis=-1)
    found = net.node("Einsum", scores, read[2], equation="bhqk,bkhd->bqhd")
    net.output(net.transpose(found, 0, 2, 1, 3))
    legal, report = legalize(net.model(), check=True)
    assert (operators(legal), report.cost) == (["Einsum", "Softmax", "Einsum"], 0)
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("order", ORDERS)
def test_an_operand_that_lacks_tiles_is_read_in_the_tiles_of_the_others(order: tuple[int, ...]) -> None:
    """Only the result splits rows into rows of 8: those of the operand lie so, whichever order the result has."""
    net = Net(18)
    rows = net.node("Relu", net.node("Reshape", net.input("x", ("m", "n", 8, 4)), net.constant([0, -1, 4])))
    found = net.node("Relu", net.node("Einsum", rows, net.weight(4, 6), equation="mak,kh->mah"))
    split = net.transpose(net.node("Reshape", found, net.constant([0, -1, 8, 6])), *order)
    net.output(net.node("Softmax", split, axis=-1))
    legal, report = legalize(net.model(), check=True)
    assert ("Transpose" in operators(legal), report.cost) == (False, 0)
    assert_same_numbers(net.model(), legal)
    again, second = legalize(legal)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), 0)


def test_a_scaling_is_no_free_transpose() -> None:
    net = Net()
    x = net.transpose(net.input("x", (2, 4, 5, 3)), 0, 3, 1, 2)
    net.output(net.node("Einsum", x, net.input("s", (2, 3)), equation="nchw,nc->nchw"))
    _, report = legalize(net.model())
    assert (report.after.transposes, report.status) == (1, "optimal")


def required(**rule: Any) -> dict[str, Any]:
    return {"name": "table", "rule": [{"op": "Einsum", **rule}]}


def test_a_required_order_of_one_operand_leaves_the_others_free() -> None:
    model = between_transposes((0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 1, 3))
    legal, report = legalize(model, required(inputs=["{3,2,1,0}", "*"], results=["*"]), check=True)
    assert (report.after.transposes, report.status) == (1, "optimal")
    [einsum] = [node for node in legal.graph.node if node.op_type == "Einsum"]
    first, second = onnx.helper.get_node_attr_value(einsum, "equation").decode().partition("->")[0].split(",")
    assert (first, second) == ("bqhd", "bhkd")
    assert verify(legal, required(inputs=["{3,2,1,0}", "*"], results=["*"]), against=model).passed


def test_the_operands_have_the_layouts_of_one_implementation() -> None:
    # Each implementation alone needs a transpose; a mix of both would need none.
    ways = [{"inputs": ["{3,2,1,0}", "{3,1,2,0}"]}, {"inputs": ["{3,1,2,0}", "{3,2,1,0}"]}]
    table = {
        "name": "table",
        "rule": [{"op": "Einsum", "implementation": [{**way, "results": ["*"]} for way in ways]}],
    }
    model = between_transposes((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    legal, report = legalize(model, table, check=True)
    assert (report.after.transposes, report.status) == (1, "optimal")
    assert_same_numbers(model, legal)


def test_the_cost_of_an_implementation_is_charged_once() -> None:
    model = between_transposes((0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 1, 3))
    _, report = legalize(model, required(inputs=["*", "*"], results=["*"], cost=100))
    assert (report.cost, report.status) == (100, "optimal")


def test_a_tile_is_the_same_in_all_operands() -> None:
    # Both neighbours compute in tiles of 4 channels: those of the product's operands and its result agree.
    net = Net()
    tiles = {"op": "Conv", "data": "NCHW4c", "kernel": "OIHW4o"}
    data = net.node("Conv", net.input("x", (1, 8, 6, 6)), net.weight(8, 8, 1, 1))
    scale = net.node("Conv", net.input("y", (1, 8, 6, 6)), net.weight(8, 8, 1, 1))
    made = net.node("Einsum", data, scale, equation="nchw,ncwk->nchk")
    net.output(net.node("Conv", made, net.weight(8, 8, 1, 1)))
    legal, report = legalize(net.model(), {"name": "table", "rule": [tiles]}, check=True)
    [einsum] = [node for node in legal.graph.node if node.op_type == "Einsum"]
    equation = onnx.helper.get_node_attr_value(einsum, "equation").decode()
    assert [len(term) for term in equation.replace("->", ",").split(",")] == [5, 5, 5]
    assert (report.after.transposes, report.status) == (3, "optimal")
    assert_same_numbers(net.model(), legal)


def test_a_constant_has_the_tiles_of_the_other_operands() -> None:
    net = Net()
    tiles = {"op": "Conv", "data": "NCHW4c", "kernel": "OIHW4o"}
    data = net.node("Conv", net.input("x", (1, 8, 6, 6)), net.weight(8, 8, 1, 1))
    made = net.node("Einsum", data, net.weight(8, 6, 5), equation="nchw,chk->nhwk")
    net.output(net.node("Relu", made))
    legal, report = legalize(net.model(), {"name": "table", "rule": [tiles]}, check=True)
    assert (report.after.transposes, report.status) == (1, "optimal")
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("kernel", ["{1,0}", "{0,1}", "KC"])
@pytest.mark.parametrize("equation", ["nchw,ck->nkhw", "nchw,ck->nhwk"])
def test_a_constant_is_stored_in_its_required_order(equation: str, kernel: str) -> None:
    net = Net()
    x = net.transpose(net.input("x", (2, 5, 6, 3)), 0, 3, 1, 2)
    net.output(net.node("Relu", net.node("Einsum", x, net.weight(3, 4), equation=equation)))
    table = required(inputs=["****", kernel], results=["*"])
    legal, report = legalize(net.model(), table, check=True)
    assert (report.status, report.cost) == ("optimal", 0)
    assert_same_numbers(net.model(), legal)
    assert verify(legal, table, against=net.model()).passed
