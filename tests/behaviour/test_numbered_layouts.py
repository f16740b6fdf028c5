"""XLA's minor-to-major notation needs no axis names: as an answer of a backend, in a table, and at a boundary."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import Net, assert_same_numbers

import relayout
from relayout import Backend


class Asking(Backend):
    """Data, and what is made of them, in one order of axes by their numbers."""

    name = "asking"
    order = "{1,3,2,0}"

    def nth_input_layout_requirements(self, node: Any, n: int) -> Any:
        return self.order if n == 0 and self._is_asked(node) else super().nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: Any, n: int) -> Any:
        return self.order if self._is_asked(node) else super().nth_result_layout_requirements(node, n)

    def _is_asked(self, node: Any) -> bool:
        return node.op_type in OPERATORS


OPERATORS = ["Conv", "MaxPool", "Softmax"]
NETS = {
    "Softmax": lambda net, x: net.node("Softmax", x, axis=1),
    "Conv": lambda net, x: net.conv(x, 3, 4),
    "both": lambda net, x: net.node("Softmax", net.node("Relu", net.conv(x, 3, 4)), axis=1),
    "MaxPool": lambda net, x: net.node("MaxPool", x, kernel_shape=[2, 2]),
}


def network(operator: str) -> Net:
    net = Net()
    net.output(NETS[operator](net, net.input("x", (1, 3, 6, 8))))
    return net


@pytest.mark.parametrize("operator", NETS)
@pytest.mark.parametrize(
    "backend",
    [Asking, {"name": "asking", "rule": [{"op": OPERATORS, "inputs": ["{1,3,2,0}"], "results": ["{1,3,2,0}"]}]}],
    ids=["class", "table"],
)
def test_a_backend_may_require_an_order_by_axis_numbers(operator: str, backend: Any) -> None:
    model = network(operator).model()
    legal, report = relayout.legalize(model, backend, check=True)
    assert (report.status, report.after.transposes) == ("optimal", 2)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(model, legal)


def test_axis_numbers_set_the_layout_of_an_input_without_axis_names() -> None:
    net = Net()
    net.output(net.node("Relu", net.input("x", (2, 3, 4, 5, 6, 7))))
    order = "{0,5,4,3,2,1}"
    layouts = {"x": order}, {net.outputs[0].name: order}
    legal, report = relayout.legalize(net.model(), input_layouts=layouts[0], output_layouts=layouts[1])
    assert report.after.transposes == 0
    shape = [dim.dim_value for dim in legal.graph.input[0].type.tensor_type.shape.dim]
    assert shape == [3, 4, 5, 6, 7, 2]
