"""Nodes of one operator class share what the verifier knows about their operator, and nothing about their operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx
import onnx_ir as ir
import pytest

from relayout.backend.interface import Backend, Implementation
from relayout.layout.layout import Layout
from relayout.model.io import read_model
from relayout.verification import verify
from relayout.verification.axis_classes import CommonNames
from relayout.verification.model_index import ModelIndex

TWICE = """<ir_version: 10, opset_import: ["" : 18]>
    twice (float scale, float[1,4,4,4] x, float[4,4,1,1] w) => (float[1,4,4,4] y, float[1,4,4,4] z) {
        scaled = Mul (scale, x)
        made = Conv (scaled, w)
        [last] channels_last = Transpose <perm = [0,2,3,1]> (made)
        [sound] y = Relu (channels_last)
        [wrong] z = Relu (made) }"""


class ChannelsLastRelu(Backend):
    """A backend that requires channels last of a Relu, and counts the questions."""

    name = "channels-last-relu"

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        self.asked[node.op_type] += 1
        return [self.for_relu()] if node.op_type == "Relu" else super().implementations(node)

    def for_relu(self) -> Implementation:
        return Implementation((Layout.parse("NHWC"),), (Layout.parse("NHWC"),))


class ByType(ChannelsLastRelu):
    answers_by_type = True

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        return super().implementations(node)


@pytest.mark.parametrize(("backend", "questions"), [(ChannelsLastRelu, 2), (ByType, 1)])
def test_of_equal_nodes_only_the_one_with_a_wrong_operand_is_refused(
    backend: type[ChannelsLastRelu], questions: int
) -> None:
    chosen = backend()
    findings = verify(onnx.parser.parse_model(TWICE), chosen).findings
    assert {each.node for each in findings if each.rule == "layout-requirement"} == {"wrong"}
    assert chosen.asked["Relu"] == questions


def test_values_share_the_names_of_axes_only_if_these_are_the_same() -> None:
    index = ModelIndex(read_model(onnx.parser.parse_model(TWICE)))
    common = CommonNames(index)
    scale, x, _ = index.model.graph.inputs
    assert common.of(scale) == ()
    values = {value.name: common.of(value) for node in index.nodes for value in node.outputs}
    assert ["".join(each) for each in values["scaled"]] == ["".join(each) for each in common.of(x)] == list("NCHW")
    assert ["".join(each) for each in values["y"]] == list("NHWC")
