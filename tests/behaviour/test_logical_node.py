"""A backend is asked about the logical node, however the operands lie."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from relayout import Backend, legalize, read_model, verify
from relayout.backend import Writing, ask, own_layout, written_node
from relayout.backend.interface import Implementation

EIGHT = {"name": "t", "rule": [{"op": "Conv", "data": "NCHWc[tile:8]"}]}
PACKED = {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4i4o"]}}


def net() -> onnx.ModelProto:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[1,16,9,9] x) => (float[1,32,4,4] y) {
            [conv] c = Conv <kernel_shape = [3,3]> (x, w)
            [relu] r = Relu (c)
            [pool] y = MaxPool <kernel_shape = [4,4]> (r) }""")
    data = np.random.default_rng(1).standard_normal((32, 16, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(data, "w"))
    return model


def packed() -> onnx.ModelProto:
    legal, _ = legalize(net(), "convert-layout", backend_options=PACKED)
    return legal


class Seen(Backend):
    """NHWC where the channels at axis 1 divide by 8; `seen` are the nodes that it was asked about."""

    name = "seen"

    def __init__(self, context: Backend | None = None) -> None:
        super().__init__(context)
        self.seen: list[ir.Node] = []

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
        data = node.inputs[0]
        self.seen.append(node)
        asks = node.domain == "" and node.op_type in ("Conv", "MaxPool") and n == 0
        return "NHWC" if asks and data is not None and data.shape is not None and data.shape[1] % 8 == 0 else "*"

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> str:
        return self.nth_input_layout_requirements(node, 0)


def test_a_backend_sees_the_operator_of_onnx_in_onnx_order() -> None:
    model = read_model(packed())
    conv = next(node for node in model.graph if node.op_type == "Conv")
    backend = Seen()
    ask(backend, conv)
    asked = backend.seen[0]
    assert (asked.domain, asked.op_type, asked.name) == ("", "Conv", "conv")
    assert [list(value.shape) for value in (*asked.inputs, *asked.outputs)] == [
        [1, 16, 9, 9],
        [32, 16, 3, 3],
        [1, 32, 7, 7],
    ]
    assert "data_layout" not in asked.attributes
    np.testing.assert_array_equal(
        asked.inputs[1].const_value.numpy(), onnx.numpy_helper.to_array(net().graph.initializer[0])
    )
    assert asked.inputs[0].producer() is conv.inputs[0].producer()
    assert written_node(asked) is conv
    assert str(own_layout(asked, "data", 4)) == "NCHWc[tile:4]"


@pytest.mark.parametrize(
    "backend",
    [
        "nhwc",
        "nchw",
        "canonical",
        "auto-nhwc",
        "xla-cpu",
        "x86-nchwc",
        {"name": "t", "rule": [{"op": "Conv", "data": "NCHWc[tile:8]"}]},
    ],
)
def test_packed_operators_are_verified_and_converted(backend: str | dict[str, object]) -> None:
    model = packed()
    found = [each.rule for each in verify(model, backend).findings]
    assert "layout-requirement" in found
    legal, report = legalize(model, backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert verify(legal, backend).passed
    assert legalize(legal, backend)[0] == legal


def test_packed_operators_that_a_backend_takes_stay() -> None:
    model = packed()
    assert legalize(model, "convert-layout", backend_options=PACKED)[0] == model
    assert verify(model, "convert-layout", backend_options=PACKED).passed


@pytest.mark.parametrize("backend", [Seen, {"name": "t", "rule": [{"op": "Conv", "data": "NHCWc[tile:16]"}]}])
def test_a_plugin_verifies_its_own_answer(backend: type[Backend] | dict[str, object]) -> None:
    legal, report = legalize(net(), backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.after.transposes > 0
    assert verify(legal, backend).passed
    assert legalize(legal, backend)[0] == legal


class Tiled(Backend):
    """Every Conv of this class is written by a rewrite that reads its kernel as ONNX has it."""

    name = "tiled"

    def implementations(self, node: ir.Node) -> list[Implementation]:
        [usual] = super().implementations(node)
        return [Implementation(usual.inputs, usual.results, rewrite=self._write)] if node.op_type == "Conv" else [usual]

    @staticmethod
    def _write(writing: Writing) -> None:
        node = writing.node
        assert node.domain == ""
        inputs = [writing.read(0), writing.relaid_constant(1, ())]
        shape = writing.shape_of(0, is_result=True)
        writing.set_result(0, writing.emit("Conv", inputs, dict(node.attributes), shape=shape))


def test_a_rewrite_reads_the_operands_as_onnx_has_them() -> None:
    channels_last, _ = legalize(net(), "nhwc")
    legal, report = legalize(channels_last, Tiled, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert [node.op_type for node in legal.graph.node if node.domain == "relayout"] != ["Conv"]
