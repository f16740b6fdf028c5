"""Attention and RotaryEmbedding of ONNX read their heads second, or last in one dimension with the numbers of a head.

Exporters write the first form with a Transpose for each operand; the second form needs none.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked, operators

from relayout import Backend, legalize
from relayout.backend.composite import Composite, Device

HEADS, SIZE = 4, 8


def heads(net: Net, value: str, count: int = HEADS) -> str:
    """Rows of all heads, as heads of rows."""
    return net.transpose(net.node("Reshape", value, net.constant([0, 0, count, -1])), 0, 2, 1, 3)


def rows(net: Net, value: str) -> str:
    return str(net.node("Reshape", net.transpose(value, 0, 2, 1, 3), net.constant([0, 0, -1])))


def block(batch: int | str, length: int | str, fewer: int = HEADS, *, is_rotated: bool = False) -> onnx.ModelProto:
    """Self-attention with `fewer` heads of keys and values, between products."""
    net = Net(23)
    x = net.input("x", (batch, length, HEADS * SIZE))
    wide, narrow = HEADS * SIZE, fewer * SIZE
    q = heads(net, net.node("MatMul", x, net.weight(wide, wide)))
    k, v = (heads(net, net.node("MatMul", x, net.weight(wide, narrow)), fewer) for _ in range(2))
    if is_rotated:
        angles = [net.input(name, (batch, length, SIZE // 2)) for name in ("cosines", "sines")]
        q, k = (net.node("RotaryEmbedding", value, *angles) for value in (q, k))
    mask = net.input("mask", (batch, 1, length, length))
    attended = net.node("Attention", q, k, v, mask, scale=0.25)
    net.output(net.node("MatMul", rows(net, attended), net.weight(wide, wide)))
    return net.model()


@pytest.mark.parametrize("fewer", [HEADS, 2, 1])
@pytest.mark.parametrize(("batch", "length"), [(1, 6), (3, 6), ("batch", "length")], ids=str)
@pytest.mark.parametrize("is_rotated", [False, True])
def test_attention_between_products_needs_no_transpose(
    batch: int | str, length: int | str, fewer: int, is_rotated: bool
) -> None:
    model = block(batch, length, fewer, is_rotated=is_rotated)
    legal, report = checked(model, "onnx")
    assert report.cost == 0
    if fewer > 1:
        assert sorted(operators(legal)) == ["Attention", *["MatMul"] * 4, *["RotaryEmbedding"] * (2 * is_rotated)]
    assert_same_numbers(model, legal)
    again, second = legalize(legal, "onnx")
    assert second.cost == 0
    assert operators(again) == operators(legal)


def test_values_of_another_width_than_the_queries() -> None:
    net = Net(24)
    q, k = (heads(net, net.input(name, (2, 5, HEADS * SIZE))) for name in "qk")
    v = heads(net, net.input("v", (2, 5, HEADS * 3)))
    net.output(rows(net, net.node("Attention", q, k, v, is_causal=1)))
    model = net.model()
    legal, _ = checked(model, "onnx")
    assert operators(legal) == ["Attention"]
    assert_same_numbers(model, legal)


def test_the_cheaper_of_the_two_forms_is_written() -> None:
    """Keys and values that lie with their heads second, as a cache has them, are longer than the queries."""
    net = Net(23)
    q = heads(net, net.input("q", (1, 2, HEADS * SIZE)))
    k, v = (net.input(name, (1, HEADS, 50, SIZE)) for name in "kv")
    net.output(rows(net, net.node("Attention", q, k, v)))
    legal, report = checked(net.model(), "onnx")
    assert report.cost == 2 * 2 * (2 * HEADS * SIZE * 4)
    assert sorted(operators(legal)) == ["Attention", "Reshape", "Reshape", "Transpose", "Transpose"]


@pytest.mark.parametrize("kind", ["three dimensions", "unknown heads", "more results"])
def test_other_forms_stay_as_they_are(kind: str) -> None:
    net = Net(23)
    shape = {"three dimensions": (2, 5, 32), "unknown heads": (2, "heads", 5, 8), "more results": (2, 4, 5, 8)}[kind]
    q, k, v = (net.input(name, shape) for name in "qkv")
    numbers = {"q_num_heads": HEADS, "kv_num_heads": HEADS} if kind == "three dimensions" else {}
    results = net.node("Attention", q, k, v, results=3 if kind == "more results" else 1, **numbers)
    for each in [results] if isinstance(results, str) else results:
        net.output(each)
    legal, report = checked(net.model(), "onnx")
    assert operators(legal) == ["Attention"]
    assert report.cost == 0


class HeadsSecond(Backend):
    name = "heads-second"

    def supports(self, node: ir.Node) -> bool:
        return node.op_type != "Attention" or "q_num_heads" not in node.attributes


@pytest.mark.parametrize("backend", [HeadsSecond(), Composite([Device("a", lambda _: HeadsSecond())])])
def test_a_form_that_the_backend_does_not_support_is_not_written(backend: Backend) -> None:
    legal, report = checked(block(1, 6), backend)
    assert report.after.transposes == 4
    attention = next(node for node in legal.graph.node if node.op_type == "Attention")
    assert "q_num_heads" not in {attribute.name for attribute in attention.attribute}


@pytest.mark.parametrize("length", [6, "length"])
def test_onnxruntimes_rotary_embedding_between_products_needs_no_transpose(length: int | str) -> None:
    net = Net(17)
    width = HEADS * SIZE
    x, places = net.input("x", (2, length, width)), net.input("places", (2, length), onnx.TensorProto.INT64)
    angles = [net.weight(10, SIZE // 2) for _ in range(2)]
    q, k = (heads(net, net.node("MatMul", x, net.weight(width, width))) for _ in range(2))
    q, k = (net.node("RotaryEmbedding", each, places, *angles, domain="com.microsoft") for each in (q, k))
    net.output(rows(net, net.node("Mul", q, k)))
    legal, report = checked(net.model(), "onnx", dims={} if length == 6 else {"length": 6})
    assert report.cost == 0
    assert "Transpose" not in operators(legal)
