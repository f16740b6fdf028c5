"""A small network is legalized for every backend at a cost computed by hand, and passes the verifier."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

import relayout
from relayout import Backend, InfeasibleError, Layout

# Two convolutions with what stands between them in practice, on a channels-first image.
NETWORK = """<ir_version: 10, opset_import: ["" : 20]>
network (float[1,8,16,16] image) => (float[1,8,1,1] y) {
    shape = Constant <value_ints = [8, 8, 3, 3]> ()
    w = ConstantOfShape <value = float[1] {0.02}> (shape)
    ones = Constant <value = float[8] {1, 1, 1, 1, 1, 1, 1, 1}> ()
    [first] a = Conv <pads = [1, 1, 1, 1]> (image, w)
    b = BatchNormalization (a, ones, ones, ones, ones)
    c = Relu (b)
    d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
    [second] e = Conv <pads = [1, 1, 1, 1]> (d, w)
    f = Add (e, d)
    y = GlobalAveragePool (f)
}"""
IMAGE = 2 * 4 * 8 * 16 * 16  # bytes of reading and writing the image once
POOLED = IMAGE // 4


def network() -> onnx.ModelProto:
    return onnx.parser.parse_model(NETWORK)


class Aligned(Backend):
    """Wants an alignment that nobody provides: the innermost stride is that of an element."""

    name = "aligned"

    def nth_input_layout_requirements(self, node: Any, n: int) -> Layout | str:
        return "NCHW[a=8]" if node.op_type == "MaxPool" else super().nth_input_layout_requirements(node, n)


@pytest.mark.parametrize(
    ("backend", "options", "transposes", "cost"),
    [
        ("onnx", {}, 0, 0),
        ("nchw", {}, 0, 0),
        ("opencl", {}, 0, 0),
        ("nhwc", {}, 1, IMAGE),
        ("canonical", {}, 1, IMAGE),
        ("convert-layout", {}, 0, 0),
        ("convert-layout", {"desired_layouts": {"Conv": ["NHWC", "OHWI"]}}, 1, IMAGE),
        (
            "convert-layout",
            {"desired_layouts": {"Conv": ["NHWC"], "MaxPool": ["NCHW"]}, "skip": ["second"]},
            2,
            2 * IMAGE,
        ),
        ("convert-layout", {"desired_layouts": {"Conv": ["NHWC"]}, "skip": ["first"]}, 1, POOLED),
        ({"name": "mine", "rule": [{"op": "MaxPool", "data": "NHWC"}]}, {}, 2, IMAGE + POOLED),
        ({"name": "mine", "rule": [{"op": "Conv", "when": {"channels": {"max": 4}}, "data": "NHWC"}]}, {}, 0, 0),
    ],
)
def test_the_network_is_legal_at_the_least_cost(
    backend: Any, options: dict[str, Any], transposes: int, cost: int
) -> None:
    legal, report = relayout.legalize(network(), backend, backend_options=options)
    assert (report.status, report.after.transposes, report.after.bytes) == ("optimal", transposes, cost)
    onnx.checker.check_model(legal, full_check=True)
    if not options:
        assert relayout.verify(legal, backend=backend, against=network()).passed


def test_the_cheaper_of_two_implementations_is_taken() -> None:
    def cost_with(price: int) -> tuple[int, int]:
        ways = [{"data": "NHWC"}, {"data": "NCHW", "cost": price}]
        table = {"name": "either", "rule": [{"op": "MaxPool", "implementation": ways}]}
        _, report = relayout.legalize(network(), table)
        return report.after.transposes, report.cost

    assert cost_with(100) == (0, 100)
    assert cost_with(10**9) == (2, IMAGE + POOLED)


def test_an_alignment_that_cannot_be_met_is_infeasible_and_named() -> None:
    with pytest.raises(InfeasibleError, match=r"(?s)MaxPool.*NCHW\[a=8\]"):
        relayout.legalize(network(), Aligned)


def test_an_alignment_that_the_tensor_has_is_met() -> None:
    table = {"name": "aligned", "rule": [{"op": "MaxPool", "inputs": ["N[a=8192]CHW"], "results": ["NCHW"]}]}
    assert relayout.legalize(network(), table)[1].after.transposes == 0


def test_a_missing_alignment_is_met_by_invisible_padding() -> None:
    table = {"name": "aligned", "rule": [{"op": "MaxPool", "inputs": ["N[a=16384]CHW"], "results": ["NCHW"]}]}
    legal, report = relayout.legalize(network(), table, check=True)
    assert {"Pad", "Slice"} & {node.op_type for node in legal.graph.node}
    (padded,) = [v for v in legal.graph.value_info if v.name.startswith("c_laid") and "pads" not in v.name]
    batch, *others = (dim.dim_value for dim in padded.type.tensor_type.shape.dim)
    assert (batch, 4 * others[0] * others[1] * others[2]) == (1, 16384)
    assert report.verification is not None
    assert report.verification.passed


def test_a_black_box_without_a_producer_is_infeasible_and_named() -> None:
    table = {"name": "boxed", "rule": [{"op": "MaxPool", "inputs": ["NCHW[acme:swizzled]"]}]}
    with pytest.raises(InfeasibleError, match=r"(?s)MaxPool.*NCHW\[acme:swizzled\]"):
        relayout.legalize(network(), table)
