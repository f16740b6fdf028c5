"""Models whose filters keep nothing of random data, as detectors do."""

from __future__ import annotations

import onnx
import pytest

from relayout import legalize, verify
from relayout.model.io import read_model
from relayout.verification.numeric import judgement
from relayout.verification.numeric.filters import has_filters, keeping
from relayout.verification.numeric.float64.verdict import Verdict

pytest.importorskip("onnxruntime")

DETECTOR = """<ir_version: 8, opset_import: ["" : VERSION]>
    detector (float[1,3,8,8] image) => (float[found,4] boxes, float[found] scores)
    <float[6,3,3,3] kernel = {KERNEL}, float limit = {1000.0}, int64[2] rows = {64, 6}, float factor = {FACTOR},
     int64[1] flat = {-1}, int64[3] batch_of_boxes = {1, 64, 4}, int64[3] batch_of_scores = {1, 1, 64},
     int64 column = {4}, int64[4] columns = {0, 1, 2, 3}, int64 box = {2},
     int64[1] most = {5}, float[1] overlap = {0.5}, float[1] lowest = {1000.0}> {
        map = Conv <pads = [1, 1, 1, 1]> (image, kernel)
        last = Transpose <perm = [0, 2, 3, 1]> (map)
        all = Reshape (last, rows)
        score = Gather <axis = 1> (all, column)
        box_of_all = Gather <axis = 1> (all, columns)
        FILTER
        sized = Mul (kept_boxes, factor)
        boxes = Relu (sized)
        scores = Relu (kept_scores) }"""
FILTERS = {
    "NonZero": """likely = Greater (score, limit)
        at = NonZero (likely)
        places = Reshape (at, flat)
        kept_boxes = Gather (box_of_all, places)
        kept_scores = Gather (score, places)""",
    "Compress": """likely = Greater (score, limit)
        kept_boxes = Compress <axis = 0> (box_of_all, likely)
        kept_scores = Compress <axis = 0> (score, likely)""",
    "NonMaxSuppression": """batch = Reshape (box_of_all, batch_of_boxes)
        classes = Reshape (score, batch_of_scores)
        chosen = NonMaxSuppression (batch, classes, most, overlap, lowest)
        column_of_boxes = Gather <axis = 1> (chosen, box)
        places = Reshape (column_of_boxes, flat)
        kept_boxes = Gather (box_of_all, places)
        kept_scores = Gather (score, places)""",
}


def detector(kind: str, version: int, *, factor: str = "2.0") -> onnx.ModelProto:
    kernel = ", ".join(f"{0.1 * ((7 * place) % 11) - 0.4:.1f}" for place in range(162))
    texts = {"VERSION": str(version), "KERNEL": kernel, "FACTOR": factor, "FILTER": FILTERS[kind]}
    text = DETECTOR
    for name, each in texts.items():
        text = text.replace(name, each)
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("version", [11, 14, 20])
@pytest.mark.parametrize("kind", FILTERS)
def test_outputs_of_a_detector_are_compared(kind: str, version: int) -> None:
    source = detector(kind, version)
    legal, _ = legalize(source, "nhwc")
    found = verify(legal, "nhwc", against=source)
    assert found.passed
    assert found.findings == ()
    assert found.numeric is not None
    assert {each.name for each in found.numeric.outputs} == {"boxes", "scores"}
    assert found.numeric.not_compared == ()
    assert found.numeric.untried == ()


@pytest.mark.parametrize("kind", FILTERS)
def test_a_fault_behind_a_filter_that_keeps_nothing_is_found(kind: str) -> None:
    found = verify(detector(kind, 20, factor="3.0"), "onnx", against=detector(kind, 20))
    assert ("numeric", "boxes") in {(each.rule, each.node) for each in found.findings}
    assert "scores" not in {each.node for each in found.findings}


def test_a_difference_that_float64_cannot_judge_is_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that are sorted may be in another order where they are nearly equal."""
    verdict = Verdict("not run: no kernel")
    monkeypatch.setattr(judgement, "in_float64", lambda differences, *_: (differences, verdict))
    found = verify(detector("NonZero", 20, factor="3.0"), "onnx", against=detector("NonZero", 20))
    rules = {(each.rule, each.node) for each in found.findings if each.severity == "error"}
    assert ("not-compared", "boxes") in rules
    assert ("numeric", "boxes") not in rules
    assert "scores" not in {node for _, node in rules}


def test_constants_are_no_filters() -> None:
    """Exporters count with them."""
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        counts (float[4] x) => (float[4] y) <int64[1] four = {4}, int64[1] flat = {-1}> {
            ones = ConstantOfShape (four)
            counted = NonZero (ones)
            places = Reshape (counted, flat)
            y = Gather (x, places) }""")
    assert not has_filters(read_model(source))


def test_the_model_itself_is_not_changed() -> None:
    model = read_model(detector("NonZero", 20))
    nodes = [*model.graph]
    assert len([*keeping(model).graph]) > len(nodes)
    assert [*model.graph] == nodes
