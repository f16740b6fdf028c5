"""The layouts of inputs and outputs that a report lists are those of the model."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from graphs import Net

import relayout
from relayout.report.schema import Report

IN_BLOCKS = [
    {"op": "reshape", "shape": [2, 4, 64], "from": [1, 8, 8, 8]},
    {"op": "transpose", "perm": [0, 2, 1]},
    {"op": "reshape", "shape": [1, 2, 8, 8, 4], "from": [2, 64, 4]},
]
OTHER_BLOCKS = [{"op": "reshape", "shape": [1, 2, 8, 8, 4], "from": [1, 8, 8, 8]}]


def convolution(*extents: int | str) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", list(extents))
    net.output(net.conv(x, 8, 8, kernel=1))
    return net.model()


def found(model: onnx.ModelProto, backend: str, asked: str, place: int, **listed: Any) -> list[tuple[str, str]]:
    """The rules and severities of the findings, with inputs and outputs in the layout `asked` and one forged entry."""
    sides = {"input_layouts": {model.graph.input[0].name: asked}, "output_layouts": {model.graph.output[0].name: asked}}
    legal, report = relayout.legalize(model, backend, **sides)  # type: ignore[arg-type]
    fields = report.model_dump(mode="json")
    fields["boundary"][place] |= listed
    forged = Report.model_validate(fields)
    findings = relayout.verify(legal, backend, against=model, report=forged, run=False).findings
    return [(each.rule, each.severity) for each in findings]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("extents", [(1, 8, 8, 8), ("n", 8, "h", "w")])
@pytest.mark.parametrize("listed", [{"order": None}, {"order": [0, 2, 1, 3]}, {"order": [0]}, {"layout": "NCHW"}])
def test_another_order_of_axes_is_found(place: int, extents: tuple[int | str, ...], listed: dict[str, Any]) -> None:
    model = convolution(*extents)
    assert found(model, "nhwc", "NHWC", place) == []
    assert found(model, "nhwc", "NHWC", place, **listed) == [("boundary", "error")]


@pytest.mark.parametrize("listed", [{"order": [0, 2, 3, 1]}, {"layout": "NHWCx"}])
def test_another_order_than_the_original_s_is_found(listed: dict[str, Any]) -> None:
    model = convolution(1, 8, 8, 8)
    assert found(model, "nhwc", "NCHW", 0) == []
    assert found(model, "nhwc", "NCHW", 0, **listed) == [("boundary", "error")]


@pytest.mark.parametrize(
    ("place", "listed"),
    [
        (0, {"transform": OTHER_BLOCKS}),
        (0, {"transform": ()}),
        (0, {"order": [0, 1, 2, 3]}),
        (1, {"transform": OTHER_BLOCKS}),
        (1, {"back": [{"op": "reshape", "shape": [1, 8, 8, 8], "from": [1, 2, 8, 8, 4]}]}),
    ],
)
def test_other_steps_to_blocks_are_found(place: int, listed: dict[str, Any]) -> None:
    model = convolution(1, 8, 8, 8)
    assert found(model, "x86-nchwc", "NCHW4c", place, transform=IN_BLOCKS) == []
    assert found(model, "x86-nchwc", "NCHW4c", place, **listed) == [("boundary", "error")]


def test_a_note_names_steps_that_cannot_be_tried() -> None:
    steps = [{"op": "reshape", "shape": [-1, 2, 4, -1, -1], "from": [-1, 8, -1, -1]}]
    assert found(convolution("n", 8, "h", "w"), "nhwc", "NHWC", 0, transform=steps) == [("boundary", "note")]


def test_names_of_axes_in_another_order_are_a_note() -> None:
    assert found(convolution(1, 8, 8, 8), "nhwc", "NCHW", 0, layout="NHWC") == [("boundary", "note")]


def test_the_steps_of_a_second_run_start_from_the_first_one() -> None:
    model = convolution(1, 8, 8, 8)
    legal, _ = relayout.legalize(model, "nhwc", input_layouts={"x": "NHWC"})
    again, report = relayout.legalize(legal, "nchw", input_layouts={"x": "any"})
    assert report.boundary[0].order == (0, 3, 1, 2)
    assert relayout.verify(again, "nchw", against=legal, report=report, run=False).findings == ()


def test_a_report_of_no_solution_is_a_warning() -> None:
    model = convolution(1, 8, 8, 8)
    legal, report = relayout.legalize(model, "nhwc")
    other = report.model_copy(update={"status": "verified"})
    findings = relayout.verify(legal, "nhwc", against=model, report=other, run=False).findings
    assert [(each.rule, each.severity) for each in findings] == [("status", "warning")]
