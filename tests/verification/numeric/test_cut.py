"""Models without the operators that the runtime lacks."""

from __future__ import annotations

import onnx
import pytest

import relayout
from relayout.model.io import read_model
from relayout.verification.numeric.cut import cut, lacking


def test_a_value_that_removed_branches_read_is_removed_too() -> None:
    """The type of the packed value is not known, so it is no input, and what reads it goes."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        net (float[4] x, bool b) => (float[4] y, float[4] z) {
            p = com.acme.Pack (x)
            y = If (b) <then_branch = one () => (float[4] u) { u = com.acme.Unpack (p) },
                        else_branch = two () => (float[4] v) { v = com.acme.Unpack (p) }>
            z = Neg (x) }"""
    )
    read = read_model(model)
    unknown = lacking(read)
    left = cut(read, lambda node: node.op_identifier()[:2] in unknown)
    assert [node.op_type for node in left.model.graph] == ["Neg"]
    assert left.left_out == ("y",)


# With as many channels as rows and columns, extents do not tell channels last from channels first.
GRID_SAMPLE = """<ir_version: 10, opset_import: ["" : 17]>
    net (double[1,6,6,6] x, double[1,6,6,2] grid) => (double[1,6,6,6] y) {
        a = Cos (x)
        b = GridSample <mode = "bilinear"> (a, grid)
        y = Neg (b) }"""


def test_what_lies_around_a_function_of_an_operator_that_no_runtime_has_is_run() -> None:
    """onnxruntime has no GridSample of doubles, be it in the function that computes it with channels last."""
    original = onnx.parser.parse_model(GRID_SAMPLE)
    legal, report = relayout.legalize(original, "nhwc", check=True)
    assert "GridSample" in {node.op_type for node in legal.graph.node if node.domain == "relayout"}
    assert (report.status, [(each.rule, each.severity) for each in report.findings]) == ("optimal", [("cut", "note")])
    assert report.findings[0].message.startswith("no runtime has these operators for operands of their types: ")
    again = relayout.verify(legal, "nhwc", against=legal)
    assert [(each.rule, each.severity) for each in again.findings] == [("cut", "note")]


@pytest.mark.parametrize(("operator", "other"), [("Cos", "Sin"), ("Neg", "Abs")], ids=["before", "after"])
def test_another_operator_around_such_a_function_is_found(operator: str, other: str) -> None:
    original = onnx.parser.parse_model(GRID_SAMPLE)
    legal, _ = relayout.legalize(original, "nhwc")
    [changed] = (node for node in legal.graph.node if node.op_type == operator)
    changed.op_type = other
    assert "numeric" in {each.rule for each in relayout.verify(legal, "nhwc", against=original).findings}


def test_the_condition_of_an_if_that_is_cut_out_is_compared() -> None:
    original = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        net (float[2,4] x) => (float[2,4] y, float[2,4] z) {
            most = ReduceMax <keepdims = 0> (x)
            limit = Constant <value = float {0.0}> ()
            above = Greater (most, limit)
            y = If (above) <then_branch = one () => (float[2,4] u) { t = com.acme.Odd (x)  u = Neg (t) },
                            else_branch = two () => (float[2,4] v) { v = Abs (x) }>
            z = Neg (x) }"""
    )
    assert relayout.verify(original, "onnx", against=original, static=True).passed
    changed = onnx.ModelProto()
    changed.CopyFrom(original)
    changed.graph.node[2].op_type = "Equal"
    verification = relayout.verify(changed, "onnx", against=original, static=True)
    assert "numeric" in {each.rule for each in verification.findings}
