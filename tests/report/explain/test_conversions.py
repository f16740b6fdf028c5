"""The records of a plan in a report."""

from __future__ import annotations

from dataclasses import replace

import onnx
import onnx_ir as ir

from relayout import Backend, Implementation, legalize


class Dear(Backend):
    """Every node costs five bytes."""

    name = "dear"

    def implementations(self, node: ir.Node) -> list[Implementation]:
        return [replace(each, cost=5) for each in super().implementations(node)]


def test_every_node_with_a_cost_is_listed_with_its_layout_or_without_one() -> None:
    """A bound of a Range has no axes, and so no layout."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float a, float[2,3] x) => (float[n] r, float[2,3] y) <float one = {1}> {
        r = Range (one, a, one) y = Relu (x) }""")
    _, report = legalize(model, Dear)
    assert [(each.layout, each.cost) for each in report.charges] == [("", 5), ("0,1", 5)]
    assert report.account is not None
    assert (report.account.operators.count, report.cost) == (2, 10)
