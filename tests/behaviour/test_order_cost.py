"""The cost of an operator in an order of its axes decides the position of conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers

import relayout
from relayout.backend import Backend, Composite, Device
from relayout.errors import BackendError


class Priced(Backend):
    """Softmax at a price for each axis that is behind its own; None as the price: not at all."""

    name = "priced"

    def __init__(self, price: Any) -> None:
        super().__init__()
        self.price = price
        self.asked: list[tuple[str, tuple[int, ...], int, bool]] = []

    def order_cost(self, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> Any:
        self.asked.append((node.op_type, axes, traffic, is_rewritten))
        if node.op_type != "Softmax":
            return traffic
        behind = len(axes) - 1 - axes.index(3)
        return self.price if behind else 0


def softmax_of_turned_data() -> Net:
    """Relu, and its rows' Softmax in the order 0, 2, 1, 3: [2, 4, 6, 8] in front of the Transpose."""
    net = Net()
    value = net.transpose(net.node("Relu", net.input("x", (2, 4, 6, 8))), 0, 2, 3, 1)
    net.output(net.transpose(net.node("Softmax", value, axis=3), 0, 3, 1, 2))
    return net


@pytest.mark.parametrize(
    ("price", "transposes", "cost"), [(0, 0, 0), (6143, 0, 6143), (6145, 2, 6144), (None, 2, 6144)]
)
def test_an_order_is_chosen_if_it_costs_less_than_the_conversions_that_it_saves(
    price: int | None, transposes: int, cost: int
) -> None:
    source = softmax_of_turned_data().model()
    legal, report = relayout.legalize(source, Priced(price), check=True)
    assert (report.after.transposes, report.cost, report.status) == (transposes, cost, "optimal")
    assert_same_numbers(source, legal)


@pytest.mark.parametrize(("price", "transposes"), [(0, 0), (None, 2)])
def test_the_device_that_runs_the_node_is_asked(price: int | None, transposes: int) -> None:
    backend = Composite([Device("here", lambda context: Priced(price), transfer=0)])
    _, report = relayout.legalize(softmax_of_turned_data().model(), backend)
    assert report.after.transposes == transposes


def test_a_transposed_product_is_reported_with_the_bytes_that_it_moves() -> None:
    net = Net()
    value = net.transpose(net.input("x", (4, 8, 6)), 0, 2, 1)
    product = net.node("MatMul", value, net.constant(np.ones((8, 8), np.float32)))
    net.output(net.transpose(product, 0, 2, 1))
    backend = Priced(0)
    _, report = relayout.legalize(net.model(), backend)
    assert report.after.transposes == 0
    # The matrix of 256 bytes is read for each of four parts, three times more than before.
    assert ("MatMul", (0, 2, 1), 768, True) in backend.asked
    assert ("MatMul", (0, 1, 2), 0, False) in backend.asked


@pytest.mark.parametrize("price", [-1, "much", True])
def test_a_price_that_is_no_number_of_bytes_is_a_backend_error(price: Any) -> None:
    with pytest.raises(BackendError, match="backend priced, node n2"):
        relayout.legalize(softmax_of_turned_data().model(), Priced(price))


class AlongTheInnermost(Backend):
    """A Softmax on another axis than the innermost is slow."""

    name = "along-the-innermost"

    def order_cost(self, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> int:
        is_fast = node.op_type != "Softmax" or is_rewritten or axes[-1] == node.attributes.get_int("axis", -1) % 4
        return traffic if is_fast else traffic + 5000


def test_an_order_that_costs_less_is_in_reach_though_no_tensor_has_it() -> None:
    net = Net()
    net.output(net.node("Softmax", net.input("x", (2, 8, 3, 5)), axis=1))
    legal, report = relayout.legalize(net.model(), AlongTheInnermost(), check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert [node.op_type for node in legal.graph.node] == ["Transpose", "Softmax", "Transpose"]
    assert report.cost == 2 * (2 * 4 * 240)
