"""A backend is asked about a conversion in the layouts that requirements state, if a format has several spellings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

import relayout
from relayout import Backend, Implementation, Layout, Reordering
from relayout.backend import TensorType, Writing


class Packs(Backend):
    """MaxPool in one layout; operators of com.acme convert to it from NCHW, and back, and note what they were asked."""

    name = "packs"
    stated = "NCHW16c"
    cost = 0.5
    """For each byte of the tensor."""

    def __init__(self, context: Backend | None = None) -> None:
        super().__init__(context)
        self.asked: set[tuple[str, str]] = set()

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "MaxPool":
            return super().implementations(node)
        layout = Layout.parse(self.stated)
        return [Implementation((layout,), (layout,), pads=True)]

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        self.asked.add((str(source), str(target)))
        ends = [Layout.parse("NCHW"), Layout.parse(self.stated)]
        if [source, target] not in (ends, ends[::-1]):
            return None

        def write(writing: Writing) -> None:
            operator = "Pack" if target == ends[1] else "Unpack"
            shape = writing.shape_of(0, is_result=True)
            made = writing.emit(operator, [writing.read(0)], {}, shape=shape, domain="com.acme", version=1)
            writing.set_result(0, made)

        return Reordering(int(self.cost * tensor.nbytes), write)

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("com.acme", "Pack"), ("com.acme", "Unpack")})


class Dear(Packs):
    cost = 4


class Last(Packs):
    stated = "NHWC"


def pooled(shape: tuple[int, ...], *perm: int) -> onnx.ModelProto:
    net = Net()
    data = net.input("x", shape)
    data = net.transpose(data, *perm) if perm else data
    net.output(net.node("MaxPool", data, kernel_shape=[1, 2]))
    return net.model()


def legal_with(model: onnx.ModelProto, backend: Any) -> tuple[list[str], relayout.Report]:
    """The operators of the legal model, which the verifier accepts and a second run leaves as it is."""
    legal, report = relayout.legalize(model, backend)
    found = relayout.verify(legal, backend, against=model, report=report, static=True)
    assert [each for each in found.findings if each.severity == "error"] == []
    assert found.price is not None
    is_native = all(each.kind == "reorder" for each in report.conversions)
    assert not is_native or found.price.computed == found.price.claimed == report.cost
    again, second = relayout.legalize(legal, backend)
    assert second.cost == report.cost
    assert [node.op_type for node in again.graph.node] == [node.op_type for node in legal.graph.node]
    return [node.op_type for node in legal.graph.node], report


@pytest.mark.parametrize("channels", [16, 32])
def test_one_block_is_asked_about_as_blocks(channels: int) -> None:
    """Its memory is that of NHWC, which the backend does not state."""
    backend = Packs()
    operators, report = legal_with(pooled((1, channels, 8, 8)), backend)
    assert operators == ["Pack", "MaxPool", "Unpack"]
    assert report.cost == 2 * channels * (64 + 56)
    assert ("NCHW", "NCHWc[tile:16]") in backend.asked
    assert [(each.from_, each.to) for each in report.conversions] == [
        ("NCHW", "NCHWc[tile:16]"),
        ("NCHWc[tile:16]", "NCHW"),
    ]


def test_a_part_of_a_block_is_asked_about_with_its_zeros() -> None:
    backend = Packs()
    relayout.legalize(pooled((1, 8, 8, 8)), backend)
    assert {("NCHW", "NHWC[pad:8]"), ("NCHW", "NC[pad:8]HWc[tile:16]")} <= backend.asked


def test_an_axis_of_one_element_is_where_the_requirement_has_it() -> None:
    operators, report = legal_with(pooled((1, 8, 1, 9)), Last())
    assert operators == ["Pack", "MaxPool", "Unpack"]
    assert report.cost == 2 * 8 * (9 + 8)


def test_a_requirement_behind_a_transpose_is_one_of_the_tensor() -> None:
    """Its axes are counted in the tensor before the Transpose."""

    backend = Packs()
    relayout.legalize(pooled((1, 8, 8, 16), 0, 3, 2, 1), backend)
    assert ("NWHC", "NCHWc[tile:16]") in backend.asked


def test_an_operator_for_another_spelling_is_taken_where_it_costs_less() -> None:
    """A Transpose makes the memory of one block too."""
    operators, report = legal_with(pooled((1, 16, 8, 8)), Dear)
    assert operators.count("Transpose") == 2
    assert "Pack" not in operators
    assert report.cost == 8 * 16 * (64 + 56)
    assert legal_with(pooled((1, 32, 8, 8)), Dear)[0] == ["Pack", "MaxPool", "Unpack"]
