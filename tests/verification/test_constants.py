"""Values computed from constants alone name no axes for the verifier; other values do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Net

from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.verification.verifier import verify

TRANSPOSED = """<ir_version: 10, opset_import: ["" : 17]>
net (float[2,4,6,3] x) => (y) <int64[4] shape = {{2, 4, 6, 3}}> {{
    w = {maker}
    n = LRN <size = 3> (w)
    [add] s = Add (x, n)
    t = Transpose <perm = [0,3,1,2]> (s)
    y = LRN <size = 3> (t) }}"""

BRANCHED = """<ir_version: 10, opset_import: ["" : 17]>
net (float[1,2,2,2] x) => (y) <int64[4] shape = {1, 2, 4, 4}, bool b = {1}> {
    w = ConstantOfShape (shape)
    [if] v = If (b) <then_branch = one () => (float[1,2,4,4] p) { p = Relu (w) },
                     else_branch = two () => (float[1,2,4,4] q) { q = Cos (w) }>
    [pool] m = MaxPool <kernel_shape = [3,3]> (v)
    c = MaxPool <kernel_shape = [3,3]> (w)
    y = Sum (x, m, c) }"""


@pytest.mark.parametrize(
    ("maker", "layout", "passed"),
    [("ConstantOfShape (shape)", "NHWC", True), ("ConstantOfShape (shape)", "NCHW", False), ("Neg (x)", "NHWC", False)],
)
def test_axis_names_of_constants_do_not_name_axes_of_data(maker: str, layout: str, passed: bool) -> None:
    model = read_model(onnx.parser.parse_model(TRANSPOSED.format(maker=maker)))
    (added,) = model.graph.node("add").outputs
    added.metadata_props["relayout.layout"] = layout
    assert verify(model, "onnx").passed == passed


def test_a_legal_model_whose_constants_go_through_operators_that_name_axes_is_sound() -> None:
    net = Net()
    image = net.transpose(net.input("x", (3, 3, 6, 4)), 0, 3, 1, 2)
    added = net.node("Mul", image, net.node("LRN", net.weight(3, 4, 3, 6), size=3))
    net.output(net.node("LRN", net.transpose(added, 0, 3, 1, 2), size=3))
    model = net.model()
    legal, _ = legalize(model, "auto-nhwc", backend_options={"device": "cuda"})
    assert verify(legal, "auto-nhwc", against=model).findings == ()


def test_the_result_of_a_branch_is_no_constant() -> None:
    model = onnx.parser.parse_model(BRANCHED)
    assert [finding.node for finding in verify(model, "nhwc").findings] == ["pool"]
    legal, _ = legalize(model, "nhwc")
    assert verify(legal, "nhwc", against=model).findings == ()


def test_a_value_computed_from_constants_has_the_layout_of_each_reader() -> None:
    """Beside the picture its axes are the picture's; what is scattered into it is no picture."""
    net = Net(opset=16)
    picture = net.input("x", (1, 2, 4, 2))
    half = net.node("Sin", net.weight(1, 2, 4, 2))
    rois = net.constant(np.array([[0, 0, 1.5, 1.5]], np.float32))
    both = net.node("Add", picture, half)
    net.output(net.node("RoiAlign", both, rois, net.constant([0]), output_height=2, output_width=2))
    indices = net.constant(np.zeros((1, 2, 4, 1), np.int64))
    net.output(net.node("ScatterElements", half, indices, net.input("updates", (1, 2, 4, 1)), axis=3))
    model = net.model()
    legal, _ = legalize(model, "canonical")
    assert verify(legal, "canonical", against=model).findings == ()
