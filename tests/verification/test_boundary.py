"""A legal model has the inputs and outputs that its report lists."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from relayout import legalize, verify
from relayout.backend import Backend

TEXT = """<ir_version: 8, opset_import: ["": 17]>
net (float[1,3,8,8] x, float[1,3,4,4] small) => (float[1,3,8,8] y, float[1,3,4,4] z) {
    y = Relu(x)
    z = Relu(small)
}"""


def swap(graph: ir.Graph) -> None:
    graph.outputs.reverse()


def drop(graph: ir.Graph) -> None:
    del graph.outputs[1]


def shrink(graph: ir.Graph) -> None:
    graph.inputs[0].shape = ir.Shape([1, 3, 8, 9])


@pytest.mark.parametrize(
    ("change", "expected", "found"),
    [(swap, "y, z", "z, y"), (drop, "y, z", "y"), (shrink, "[1, 3, 8, 8]", "[1, 3, 8, 9]")],
)
def test_a_post_pass_that_changes_the_boundary_is_found(
    change: Callable[[ir.Graph], None], expected: str, found: str
) -> None:
    class Changing(Backend):
        name = "changing"

        def finish(self, model: ir.Model, device: str = "") -> bool:
            change(model.graph)
            return True

    source = onnx.parser.parse_model(TEXT)
    legal, report = legalize(source, Changing())
    assert report.verification is not None
    for verification in (report.verification, verify(legal, Changing(), report=report)):
        own = [finding for finding in verification.findings if finding.rule == "boundary"]
        assert [(each.severity, each.expected, each.found) for each in own] == [("error", expected, found)]


def test_a_permuted_input_has_the_shape_that_the_report_says() -> None:
    legal, report = legalize(onnx.parser.parse_model(TEXT), "nhwc", input_layouts={"x": "NHWC"})
    assert [each.shape for each in report.boundary if each.name == "x"] == [(1, 8, 8, 3)]
    assert verify(legal, "nhwc", report=report).passed
