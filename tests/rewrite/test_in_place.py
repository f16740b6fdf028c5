"""A source stays as it is only where it has the nodes that its plan would write."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

from relayout import Backend, Implementation, Layout, Reordering, TensorType, legalize
from relayout.verification.verifier import verify


class Turns(Backend):
    """Turns data to channels last by an operator of its own, for the cost given to the class."""

    name = "turns"
    cost: int | None = None

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        return Reordering(self.cost, _turn) if str(target) == "NHWC" else None

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("acme", "Turn")})


class TurnsForLittle(Turns):
    cost = 100


def _turn(writing: Any) -> None:
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("Turn", [writing.read(0)], shape=shape, domain="acme"))


@pytest.mark.parametrize("backend", [Turns, TurnsForLittle])
def test_a_transpose_gives_way_to_the_operator_that_the_report_counts(backend: type[Backend]) -> None:
    net = Net()
    net.output(net.transpose(net.conv(net.input("x", (1, 3, 8, 8)), 3, 4), 0, 2, 3, 1))
    legal, report = legalize(net.model(), backend())
    [conversion] = report.conversions
    kinds = {name: node.op_type for node in ir.from_proto(legal).graph for name in [node.outputs[0].name]}
    assert [kinds[name] for name in conversion.nodes or ()] == ["Turn"]
    assert (report.after.transposes, report.after.reorders) == (0, 1)
    assert report.cost == (100 if backend is TurnsForLittle else conversion.bytes)


def test_a_chain_of_transposes_that_costs_as_much_stays() -> None:
    net = Net()
    turned = net.transpose(net.input("x", (1, 3, 8, 8)), 0, 2, 3, 1)
    net.output(turned)
    net.output(net.transpose(turned, 0, 2, 1, 3))
    source = net.model()
    legal, report = legalize(source, "onnx")
    assert [node.input[0] for node in legal.graph.node] == [node.input[0] for node in source.graph.node]
    assert report.after == report.before


class Shapes(Backend):
    """Takes a Shape of channels last only."""

    name = "shapes"
    inputs, cost = "NHWC", 0

    def implementations(self, node: ir.Node) -> list[Implementation]:
        inputs, results = ([Layout.any(len(v.shape or ())) for v in each if v] for each in (node.inputs, node.outputs))
        if node.op_type != "Shape":
            return [Implementation(tuple(inputs), tuple(results))]
        return [Implementation((Layout.parse(self.inputs),), tuple(results), cost=self.cost)]


class CostlyShapes(Shapes):
    """Charges for a Shape."""

    name = "costly-shapes"
    inputs, cost = "****", 100


@pytest.mark.parametrize("backend", [Shapes, CostlyShapes])
@pytest.mark.parametrize("reading", ["y = Neg (t)", "u = Concat <axis = 0> (t, rest) y = Reshape (z, u)"])
def test_a_shape_that_the_plan_does_not_need_stays_only_where_it_is_free(backend: type[Backend], reading: str) -> None:
    source = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        net (float[6,8,s0,3] x) => (y, float[6,2,s1,6] z)
        <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] rest = {{-1}}> {{
            z = DepthToSpace <blocksize = 2> (x) s = Shape (z) t = Slice (s, zero, two) {reading}
        }}"""
    )
    legal, report = legalize(source, backend())
    assert "Shape" not in [node.op_type for node in legal.graph.node]
    assert report.cost == 0
    assert verify(legal, backend(), against=source, report=report, static=True).passed
    kept, _ = legalize(source, "onnx")
    assert [node.op_type for node in kept.graph.node] == [node.op_type for node in source.graph.node]
