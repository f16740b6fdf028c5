"""Solver, report and backend agree on the constants of a model."""

from __future__ import annotations

import onnx
import pytest

import relayout
from relayout.model.constants import constant_values
from relayout.model.io import read_model

GRAPH = """<ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
    g (float[1,4,5,6] x, float[8,4,3,3] k) => (float[1,3,4,8] y) <float[1,8,3,4] stored = {DATA}, bool c = {1},
        float[1,8,3,4] w> {
        w = MADE
        conv = Conv (x, k)
        left = Transpose <perm = [0,2,3,1]> (conv)
        right = Transpose <perm = [0,2,3,1]> (w)
        y = Add (left, right) }""".replace("DATA", ", ".join(["1"] * 96))
BRANCH = "(float[1,8,3,4] {0}) {{ {0} = Neg (stored) }}"
MADE = {
    "Neg (stored)": True,
    "mine.Custom (stored)": False,
    "RandomNormalLike (stored)": False,
    f"If (c) <then_branch = a () => {BRANCH.format('p')}, else_branch = b () => {BRANCH.format('q')}>": False,
}


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "nchw", "canonical", "xla-cpu"])
@pytest.mark.parametrize(("made", "is_constant"), MADE.items())
def test_a_report_adds_up_whatever_produces_an_operand(made: str, is_constant: bool, backend: str) -> None:
    source = onnx.parser.parse_model(GRAPH.replace("MADE", made))
    constants = {value.name for value in constant_values(read_model(source).graph)}
    assert ("w" in constants, "right" in constants, "left" in constants) == (is_constant, is_constant, False)
    legal, report = relayout.legalize(source, backend)
    assert report.before.transposes == (1 if is_constant else 2)
    findings = relayout.verify(legal, backend, against=source, report=report).findings
    assert [finding for finding in findings if finding.rule == "cost-accounting"] == []
