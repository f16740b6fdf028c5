"""A copy is made from another copy where that costs less: formats that pad, and prices that a backend states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked
from legalization_checks import operators as operators_in
from onnx import TensorProto, helper

from relayout import legalize
from relayout.backend import Assignment, Backend, Composite, Device, Implementation, Nodes, TensorType, load_backend
from relayout.layout.layout import Layout

PADDED = """
name = "padded"
[[rule]]
op = "Conv"
pads = true
inputs = ["NCHW16c", "OIHW16i16o"]
results = ["NCHW16c"]
[[rule]]
op = "Relu"
inputs = ["NCHW"]
results = ["NCHW"]
[[rule]]
op = "Sin"
inputs = ["NHWC"]
results = ["NHWC"]
"""
ORDERS = {"MaxPool": Layout.parse("NHWC"), "AveragePool": Layout.parse("NWHC")}
TO_A = Assignment({"a": 0}, Nodes(operators=("*Pool",)))
# The bytes of 3 channels of 8 x 8, and of the 16 that they are filled up to.
SMALL, LARGE = 4 * 3 * 64, 4 * 16 * 64


class Turns(Backend):
    """MaxPool in NHWC, and AveragePool in NWHC. A Transpose from NCHW to NWHC costs far more than two others."""

    name = "turns"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        layout = ORDERS.get(node.op_type)
        return super().implementations(node) if layout is None else [Implementation((layout,), (layout,))]

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int:
        return 1000 if "".join(target.names) in ("NWHC", "0321") and source.names[0] + source.names[1] != "NH" else 10


def padded_result() -> onnx.ModelProto:
    net = Net()
    value = net.conv(net.input("x", (1, 16, 8, 8)), 16, 3)
    net.output(net.node("Relu", value))
    net.output(net.node("Sin", net.transpose(value, 0, 2, 3, 1)))
    return net.model()


def test_the_copy_without_padding_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "padded.toml"
    path.write_text(PADDED)
    source = padded_result()
    legal, report = checked(source, load_backend(str(path)))
    listed = [(each.kind, each.bytes) for each in report.conversions if each.value != "x"]
    assert sorted(listed) == [("pad", LARGE + SMALL), ("transpose", 2 * SMALL)]
    assert operators_in(legal).count("Slice") == 1
    assert_same_numbers(source, legal)
    again, second = legalize(legal, load_backend(str(path)))
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


@pytest.mark.parametrize(("most", "passed"), [(2, True), (1, False)])
def test_a_pad_does_not_count_as_a_transpose(most: int, passed: bool, tmp_path: Path) -> None:
    path = tmp_path / "padded.toml"
    path.write_text(PADDED)
    _, report = legalize(padded_result(), load_backend(str(path)), max_transposes=most)
    assert (report.status, report.after.transposes) == ("optimal", 2)
    assert report.verification is not None
    assert report.verification.passed == passed


def test_two_transposes_are_taken_where_the_backend_says_that_they_cost_less_than_one() -> None:
    net = Net()
    value = net.conv(net.input("x", (2, 4, 6, 8)), 4, 4)
    for operator in ("MaxPool", "AveragePool"):
        net.output(net.node(operator, value, kernel_shape=[2, 2]))
    source = net.model()
    legal, report = checked(source, Turns())
    assert report.cost == 40
    assert [(each.from_, each.to) for each in report.conversions if each.value == value] == [
        ("NCHW", "NHWC"),
        ("NHWC", "NWHC"),
    ]
    assert_same_numbers(source, legal)
    again, second = legalize(legal, Turns())
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


def test_a_device_of_several_takes_two_transposes_where_it_says_that_they_cost_less_than_one() -> None:
    net = Net()
    value = net.node("Relu", net.input("x", (2, 4, 6, 8)))
    for operator in ("MaxPool", "AveragePool"):
        net.output(net.node(operator, value, kernel_shape=[2, 2]))
    source = net.model()
    relu = Device("b", "onnx", takes=Nodes(operators=("Relu",)), transfer=0.1)
    pools = Device("a", Turns, takes=Nodes(operators=("*Pool",)), transfer=0.1)
    board = Composite([pools, relu], host="b")
    legal, report = checked(source, board)
    assert [(each.from_, each.to) for each in report.conversions if each.value == value] == [
        ("NCHW", "NHWC"),
        ("NHWC", "NWHC"),
    ]
    # One copy crosses to the device of the pools, and their results cross back.
    assert [each.value for each in report.transfers].count(value) == 1
    assert_same_numbers(source, legal)
    again, second = legalize(legal, board)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)
    limited = ", with each tensor transferred from the device that makes it"
    assert report.proof.endswith(limited)
    assert limited not in checked(source, Turns())[1].proof


def test_the_source_s_own_steps_are_taken_where_one_step_costs_more() -> None:
    net = Net()
    value = net.conv(net.input("x", (2, 4, 6, 8)), 4, 4)
    net.output(net.transpose(net.transpose(value, 0, 2, 3, 1), 0, 2, 1, 3))
    source = net.model()
    _, report = checked(source, Turns())
    assert (report.cost, report.after.transposes) == (20, 2)


@pytest.mark.parametrize("operators", [("MaxPool", "AveragePool"), ("AveragePool", "MaxPool")])
def test_a_copy_that_both_branches_need_is_made_before_them(operators: tuple[str, str]) -> None:
    net = Net()
    value = net.conv(net.input("x", (2, 4, 6, 8)), 4, 4)
    bodies = []
    for name, operator in zip(("then", "else"), operators, strict=True):
        inner = Net(prefix=f"{name}_")
        inner.output(inner.node("ReduceSum", inner.node(operator, value, kernel_shape=[2, 2]), keepdims=0))
        bodies.append(helper.make_graph(inner.nodes, name, [], inner.outputs, inner.constants))
    condition = net.input("c", (), TensorProto.BOOL)
    net.output(net.node("If", condition, then_branch=bodies[0], else_branch=bodies[1]))
    source = net.model()
    legal, report = checked(source, Turns())
    assert (report.cost, report.after.transposes) == (20, 2)
    assert operators_in(legal).count("Transpose") == 1
    assert_same_numbers(source, legal)
