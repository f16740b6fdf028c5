"""Models without the operators that the runtime lacks."""

from __future__ import annotations

import onnx

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
