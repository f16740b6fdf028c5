"""PlaidML and TVM's TOPI: each operation has its layout, also mixed in one network and as NCHW16c."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked

import relayout
from relayout import Backend, Layout
from relayout.backend import rank_of
from relayout.model.layout_functions import with_bodies
from relayout.ops.operand_roles import has_roles, input_role, own_layout, result_role


class AsStated(Backend):
    """Each operation in the layouts that its own attributes state; what states none is as ONNX has it."""

    name = "as-stated"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return own_layout(node, input_role(node, n), rank_of(node.inputs[n]))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return own_layout(node, result_role(node, n), rank_of(node.outputs[n]), is_result=True)


def layouts(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Each operator of the domain `relayout` and the layout of its data, in order."""
    return [
        (node.op_type, next(a.s.decode() for a in node.attribute if a.name == "data_layout"))
        for node in model.graph.node
        if node.domain == "relayout"
    ]


# Layouts per operation

MIXED = """<ir_version: 10, opset_import: ["" : 20, "relayout" : 1]>
mixed (float[2,9,9,16] x) => (float[2,32,9,9] y)
<float[2,9,9,32] a, float[2,9,9,32] b, float[2,32,9,9] c, float[2,32,9,9] d> {
    a = relayout.Conv <data_layout = "NHWC", kernel_layout = "HWIO", pads = [1, 1, 1, 1]> (x, w)
    b = relayout.AveragePool <data_layout = "NHWC", kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
    c = Transpose <perm = [0, 3, 1, 2]> (b)
    d = Conv <pads = [1, 1, 1, 1]> (c, v)
    y = Relu (d)
}"""


def mixed() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MIXED)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (3, 3, 16, 32)), ("v", (32, 32, 3, 3))):
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def test_a_network_may_mix_layouts_and_keeps_them() -> None:
    legal, report = checked(mixed(), AsStated)
    assert layouts(legal) == [("Conv", "NHWC"), ("AveragePool", "NHWC")]
    assert report.after.transposes == 1
    assert_same_numbers(with_bodies(mixed()), legal)


def test_layouts_of_operations_are_chosen_together() -> None:
    # In one layout throughout the transpose between goes, and one before or behind comes.
    for backend, expected in (("nhwc", 1), ("nchw", 1)):
        legal, report = checked(mixed(), backend)
        assert report.after.transposes == expected
        assert_same_numbers(with_bodies(mixed()), legal)


class Preferring(Backend):
    """Convolutions of few channels run on NCHW, the others on NHWC; a pool on either."""

    name = "preferring"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if node.op_type != "Conv" or n > 1:
            return super().nth_input_layout_requirements(node, n)
        few = node.inputs[0] is not None and 4 in (node.inputs[0].shape or ())
        return ("NCHW" if few else "NHWC") if n == 0 else ("OIHW" if few else "HWIO")

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if node.op_type != "Conv":
            return super().nth_result_layout_requirements(node, n)
        return self.nth_input_layout_requirements(node, 0)


def test_each_operation_gets_the_layout_that_suits_it() -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 4, 16, 16)), 4, 32))
    value = net.node("Relu", net.conv(net.node("Relu", net.conv(value, 32, 32)), 32, 4))
    net.output(net.conv(value, 4, 4))
    legal, report = checked(net.model(), Preferring)
    assert layouts(legal) == [("Conv", "NHWC"), ("Conv", "NHWC")]
    assert report.after.transposes == 2
    assert_same_numbers(net.model(), legal)


# "NCHW16c can describe a 5-D tensor of [batch_size, channel, height, width, channel_block]"


def test_a_layout_string_of_tvms_is_a_layout() -> None:
    layout = Layout.parse("NCHW16c")
    assert layout == Layout.parse("NCHWc[tile:16]")
    assert layout.to_tvm() == "NCHW16c"


@pytest.mark.parametrize("desired", [["NCHW16c", "OIHW16i16o"], ["NCHWc[tile:16]", "OIHWi[tile:16]o[tile:16]"]])
def test_desired_layouts_are_written_either_way(desired: list[str]) -> None:
    net = Net()
    value = net.node("Relu", net.conv(net.input("x", (1, 16, 8, 8)), 16, 32))
    net.output(net.conv(value, 32, 16))
    options = {"desired_layouts": {"Conv": desired}}
    legal, report = relayout.legalize(net.model(), "convert-layout", backend_options=options)
    assert layouts(legal) == [("Conv", "NCHWc[tile:16]")] * 2
    assert report.after.transposes == 2
    assert_same_numbers(net.model(), legal)


def pools() -> Net:
    net = Net()
    value = net.node("Relu", net.input("x", (1, 32, 8, 8)))
    for _ in range(2):
        value = net.node("Relu", net.node("MaxPool", value, kernel_shape=[3, 3], pads=[1] * 4))
    net.output(value)
    return net


def test_a_table_may_require_a_tvm_layout() -> None:
    net = pools()
    table = {"name": "table", "rule": [{"op": "MaxPool", "data": "NCHW16c"}]}
    legal, report = relayout.legalize(net.model(), table)
    assert layouts(legal) == [("MaxPool", "NCHWc[tile:16]")] * 2
    assert report.after.transposes == 2
    assert_same_numbers(net.model(), legal)


class Blocked(Backend):
    """Pools run on blocks of 16 channels."""

    name = "blocked"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        wants = node.op_type == "MaxPool" and has_roles(node)
        return "NCHW16c" if wants else super().nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        wants = node.op_type == "MaxPool" and has_roles(node)
        return "NCHW16c" if wants else super().nth_result_layout_requirements(node, n)


def test_a_python_backend_may_require_a_tvm_layout() -> None:
    net = pools()
    legal, report = checked(net.model(), Blocked)
    assert report.after.transposes == 2
    assert {layout for _, layout in layouts(legal)} == {"NCHWc[tile:16]"}


def pool(text: str) -> onnx.ModelProto:
    """TOPI's pool in a layout of its own."""
    node = onnx.helper.make_node(
        "MaxPool", ["x"], ["y"], "pool", domain="relayout", data_layout=text, kernel_shape=[3, 3], pads=[1] * 4
    )
    values = [onnx.helper.make_tensor_value_info(name, 1, (1, 2, 8, 8, 16)) for name in ("x", "y")]
    graph = onnx.helper.make_graph([node], "pool", values[:1], values[1:])
    imports = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("relayout", 1)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("text", ["NCHW16c", "NCHWc[tile:16]"])
@pytest.mark.parametrize("backend", [AsStated, Blocked, "opencl", "onnx"])
def test_an_operation_already_in_a_tvm_layout_is_unchanged(text: str, backend: object) -> None:
    legal, report = checked(pool(text), backend)
    assert report.after.transposes == 0
    assert layouts(legal) == [("MaxPool", text)]
    assert_same_numbers(with_bodies(pool(text)), legal)
