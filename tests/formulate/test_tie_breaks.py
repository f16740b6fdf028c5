"""Among alternatives of equal cost, a node follows its producer where layouts flow down, and else stays as it is."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

import relayout
from relayout import Backend, Implementation, Layout
from relayout.backend import Composite, Device

NHWC = Layout.parse("NHWC")


class Flowing(Backend):
    """Pools on NHWC data."""

    name = "flowing"

    def __init__(self, flows: bool | frozenset[str], context: Backend | None = None) -> None:
        super().__init__(context)
        self.flows_down = flows

    def implementations(self, node: ir.Node) -> list[Implementation]:
        return [Implementation((NHWC,), (NHWC,))] if node.op_type == "MaxPool" else [*super().implementations(node)]


def chain() -> onnx.ModelProto:
    """Operators behind a pool, which run in any order of axes."""
    net = Net()
    value = net.node("MaxPool", net.input("x", (1, 4, 8, 8)), kernel_shape=[2, 2])
    net.output(net.node("Neg", net.node("Abs", net.node("Relu", value))))
    return net.model()


@pytest.mark.parametrize(
    ("flows", "place"), [(False, 2), (True, 5), (frozenset({"Relu", "Abs"}), 4), (frozenset({"Abs"}), 2)]
)
@pytest.mark.parametrize("on_device", [False, True])
def test_the_conversion_is_behind_the_operators_that_follow(
    flows: bool | frozenset[str], place: int, *, on_device: bool
) -> None:
    backend = Composite([Device("one", lambda context: Flowing(flows, context))]) if on_device else Flowing(flows)
    legal, report = relayout.legalize(chain(), backend)
    assert [node.op_type for node in legal.graph.node].index("Transpose", 1) == place
    again, second = relayout.legalize(legal, backend)
    assert (again, second.cost) == (legal, report.cost)
