"""A copy is made from another copy where that costs less: formats that pad, and prices that a backend states."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked, operators
from onnx import TensorProto, helper

from relayout import legalize
from relayout.backend import Backend, Implementation, TensorType, load_backend
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
# The bytes of 3 channels of 8 x 8, and of the 16 that they are filled up to.
SMALL, LARGE = 4 * 3 * 64, 4 * 16 * 64


class Turns(Backend):
    """Operators read and give their dimensions in ONNX's order. A Transpose that swaps the outer spatial dimensions and
    the channels costs far more than two others."""

    name = "turns"

    def implementations(self, node: ir.Node) -> list[Implementation]:
        if node.op_type not in ("Relu", "Sin", "Cos"):
            return super().implementations(node)
        layout = Layout.from_names("0123")
        return [Implementation((layout,), (layout,))]

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int:
        return 1000 if "".join(target.names) == "0321" else 10


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
    legal, report = checked(source, load_backend(str(path)), certify=True)
    listed = [(each.kind, each.bytes) for each in report.conversions if each.value != "x"]
    assert sorted(listed) == [("pad", LARGE + SMALL), ("transpose", 2 * SMALL)]
    assert operators(legal).count("Slice") == 1
    assert_same_numbers(source, legal)
    again, second = legalize(legal, load_backend(str(path)))
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


def test_two_transposes_are_taken_where_the_backend_says_that_they_cost_less_than_one() -> None:
    net = Net()
    value = str(net.node("Relu", net.input("x", (2, 4, 6, 8))))
    net.output(net.node("Sin", net.transpose(value, 0, 2, 3, 1)))
    net.output(net.node("Cos", net.transpose(value, 0, 3, 2, 1)))
    source = net.model()
    legal, report = checked(source, Turns(), certify=True)
    assert report.cost == 20
    assert [(each.value, each.passes) for each in report.conversions] == [("relu_0", 1)] * 2
    assert_same_numbers(source, legal)
    again, second = legalize(legal, Turns())
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


@pytest.mark.parametrize("first", ["then", "else"])
def test_a_copy_that_both_branches_need_is_made_before_them(first: str) -> None:
    net = Net()
    value = str(net.node("Relu", net.input("x", (2, 4, 6, 8))))
    bodies = {}
    for name, operator, perm in (("then", "Sin", (0, 2, 3, 1)), ("else", "Cos", (0, 3, 2, 1))):
        inner = Net(prefix=f"{name}_")
        inner.output(inner.node("ReduceSum", inner.node(operator, inner.transpose(value, *perm)), keepdims=0))
        bodies[name] = helper.make_graph(inner.nodes, name, [], inner.outputs, inner.constants)
    one, other = (bodies["then"], bodies["else"]) if first == "then" else (bodies["else"], bodies["then"])
    condition = net.input("c", (), TensorProto.BOOL)
    net.output(net.node("If", condition, then_branch=one, else_branch=other))
    source = net.model()
    legal, report = checked(source, Turns())
    assert report.cost == 20
    assert_same_numbers(source, legal)
