"""The cost at which a node was written is charged again by a second run, for as long as the node is the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net

import relayout
from relayout import Backend, Implementation, Layout, Reordering, TensorType
from relayout.backend import Writing
from relayout.backend.noted_costs import note_cost, noted_cost
from relayout.layout.metadata_keys import NODE_COST_KEY
from relayout.model.io import to_json

NHWC = Layout.parse("NHWC")


class Acme(Backend):
    """Pools as an operator of its own on NHWC data, and a conversion to that, each at a cost."""

    name = "acme"
    answers_by_type = True

    def implementations(self, node: ir.Node) -> list[Implementation]:
        if node.op_type != "MaxPool" or node.domain:
            return [*super().implementations(node)]
        return [Implementation((NHWC,), (NHWC,), cost=700, rewrite=written_as("Pool"))]

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        return Reordering(50, written_as("Pack")) if str(target) == "NHWC" else None

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("com.acme", "Pack")})


def written_as(operator: str) -> Callable[[Writing], None]:
    def rewrite(writing: Writing) -> None:
        shape = writing.shape_of(0, is_result=True)
        writing.set_result(0, writing.emit(operator, [writing.read(0)], shape=shape, domain="com.acme"))

    return rewrite


def pools() -> onnx.ModelProto:
    net = Net()
    value = net.node("MaxPool", net.input("x", ("n", 4, 8, 8)), kernel_shape=[2, 2])
    net.output(net.node("Softmax", value, axis=-1))
    return net.model()


@pytest.mark.parametrize("form", [lambda model: model, to_json], ids=["onnx", "json"])
def test_a_second_run_charges_what_the_first_has_noted(form: Callable[[object], object]) -> None:
    source = form(relayout.read_model(pools()) if form is to_json else pools())
    legal, first = relayout.legalize(source, Acme())
    again, second = relayout.legalize(legal, Acme())
    assert again == legal
    for report in (first, second):
        assert report.account is not None
        assert (report.account.operators.cost, report.account.reorders.cost) == (700, 50)
        assert report.verification is not None
        assert report.verification.passed
    assert first.cost == second.cost


def test_a_note_for_a_node_that_another_tool_has_changed_since_is_ignored() -> None:
    legal, first = relayout.legalize(pools(), Acme())
    for value in (*legal.graph.input, *legal.graph.output, *legal.graph.value_info):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    _, second = relayout.legalize(legal, Acme())
    assert first.account is not None
    assert second.account is not None
    assert (first.account.operators.cost, second.account.operators.cost) == (700, 0)


def node(*shapes: tuple[int | str | None, ...], operator: str = "Conv") -> ir.Node:
    values = [ir.Value(name=f"v{n}", shape=ir.Shape(shape)) for n, shape in enumerate(shapes)]
    return ir.Node("com.acme", operator, values[:-1], outputs=values[-1:])


def test_a_note_is_for_an_operator_its_first_operands_and_its_results() -> None:
    noted = node((1, "c"), (5, 6), (1, 6))
    note_cost([noted, ir.Node("", "Reshape", [noted.outputs[0], None])], 12)
    text = noted.metadata_props[NODE_COST_KEY]
    assert text == "12 Conv [1,?] [5,6] -> [1,6]"
    found = {
        "renamed": node((1, "d"), (5, 6), (1, 6)),
        "fused": node((1, None), (5, 6), (6,), (1, 6)),
        "fixed": node((1, 5), (5, 6), (1, 6)),
        "longer": node((1, "c"), (5, 7), (1, 6)),
        "shorter": node((1, "c"), (1, 6)),
        "other": node((1, "c"), (5, 6), (1, 6), operator="Gemm"),
    }
    for each in found.values():
        each.metadata_props[NODE_COST_KEY] = text
    assert {name for name, each in found.items() if noted_cost(each) == 12} == {"renamed", "fused"}
    assert {noted_cost(each) for name, each in found.items() if name not in ("renamed", "fused")} == {None}


@pytest.mark.parametrize("cost", ["", "-3", "1.5", "x", "9" * 5000, "²"])
def test_a_note_without_a_cost_in_bytes_is_ignored(cost: str) -> None:
    noted = node((1, 2), (2, 3))
    noted.metadata_props[NODE_COST_KEY] = f"{cost} Conv [1,2] -> [2,3]"
    assert noted_cost(noted) is None


class Blocks(Backend):
    """Convolutions on padded blocks of channels, or on NHWC at the cost `slow`."""

    name = "blocks"
    answers_by_type = True

    def __init__(self, slow: int) -> None:
        super().__init__()
        self.slow = slow

    def implementations(self, node: ir.Node) -> list[Implementation]:
        if node.op_type != "Conv":
            return [*super().implementations(node)]
        kinds = [("NCHW16c", "OIHW16i16o", True, 0), ("NHWC", "OHWI", False, self.slow)]
        return [
            Implementation((Layout.parse(data), Layout.parse(kernel), "*"), (Layout.parse(data),), cost=cost, pads=pads)
            for data, kernel, pads, cost in kinds
        ]


def normalized(channels: int, then: int) -> onnx.ModelProto:
    """A convolution, a normalization, and a convolution of `then` results, or a pool if that is 0. No channels fill
    their blocks."""
    net = Net()
    value = net.conv(net.input("x", (2, 32, 6, 5)), 32, channels, kernel=1)
    value = net.node("Relu" if then else "Sigmoid", value)
    parameters = [*(net.weight(channels) for _ in range(3)), net.constant(np.full(channels, 0.5, np.float32))]
    value = net.node("BatchNormalization", value, *parameters)
    net.output(net.conv(value, channels, then, kernel=1) if then else net.node("GlobalMaxPool", value))
    return net.model()


@pytest.mark.parametrize(("channels", "then", "slow"), [(20, 8, 4000), (20, 40, 14000), (8, 0, 14000)])
@pytest.mark.parametrize("backend", ["blocks", "onnx", "nchw", "nhwc"])
def test_a_legal_model_costs_any_backend_the_same_in_the_next_run(
    backend: str, channels: int, then: int, slow: int
) -> None:
    """A noted cost is that of the node's layout: padding adds to it, and a change of layout renews it. A pad that is in
    the model counts like one that is added."""
    blocks = Blocks(slow)
    second = blocks if backend == "blocks" else backend
    legal, first = relayout.legalize(normalized(channels, then), blocks)
    other, report = relayout.legalize(legal, second)
    again, last = relayout.legalize(other, second)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert (again.graph, last.cost) == (other.graph, report.cost)
    if second is blocks:
        assert (other.graph, report.cost) == (legal.graph, first.cost)


@pytest.mark.parametrize(("rank", "cost"), [(4, 100), (5, 0)])
def test_an_operator_on_tiles_costs_what_it_costs_in_the_rank_of_the_source(rank: int, cost: int) -> None:
    net = Net()
    value = net.node("Concat", *[net.input("x", (3, 6, 4, 1))] * 2, axis=2)
    value = net.node("Reshape", value, net.constant([3, 6, 4, 2, 1]))
    net.output(net.node("Reshape", net.transpose(value, 0, 1, 3, 2, 4), net.constant([3, 12, 4, 1])))
    rule = {"op": "Concat", "when": {"rank": rank}, "inputs": ["*"], "results": ["*"], "cost": 100}
    table = {"name": "ranked", "extends": "onnx", "rule": [rule]}
    legal, first = relayout.legalize(net.model(), table)
    assert [p.key for node in legal.graph.node for p in node.metadata_props] == [NODE_COST_KEY]
    assert first.verification is not None
    assert first.verification.passed
    assert first.account is not None
    assert first.account.operators.cost == cost
    assert relayout.legalize(legal, table)[1].cost == first.cost
