"""`finish` returns the model that was verified."""

from __future__ import annotations

import onnx
from command_line import CHANNELS_LAST
from graphs import Net

from relayout import legalize, verify
from relayout.backend import load_backend
from relayout.legalization import Outcome, finish, legalize_model
from relayout.model.io import read_model
from relayout.options import Options
from relayout.report.schema import Verification
from relayout.report.totals import totals

OPTIONS = Options(check=True, inline=True)
TVM = {"desired_layouts": {"Conv": ["NHWC", "HWIO"]}, "skip": ["conv2"]}


def source() -> onnx.ModelProto:
    return onnx.parser.parse_model(CHANNELS_LAST)


def legalized() -> Outcome:
    """One convolution reads NHWC, as an operator of relayout; the other NCHW, as in the source."""
    return legalize_model(read_model(source()), load_backend("convert-layout", options=TVM), Options())


def verification(outcome: Outcome, backend: str) -> Verification:
    found = finish(outcome, load_backend(backend), OPTIONS, source()).report.verification
    assert found is not None
    return found


def test_the_report_counts_the_model_without_functions() -> None:
    outcome = legalized()
    before = outcome.report.after
    assert outcome.model.functions
    done = finish(outcome, load_backend("onnx"), Options(inline=True), source())
    assert not done.model.functions
    assert done.changed
    assert done.report.after == totals(done.model, {}) != before
    assert done.report.verification is not None
    assert done.report.verification.numeric is None


def test_layout_requirements_are_checked_where_the_operators_state_layouts() -> None:
    found = verification(legalized(), "nhwc")
    assert {(finding.rule, finding.node) for finding in found.findings if finding.severity == "error"} >= {
        ("layout-requirement", "conv2")
    }
    assert "conv1" not in {finding.node for finding in found.findings}
    assert not found.passed
    assert found.numeric is not None
    assert found.numeric.status == "compared"


def test_an_inlined_wrong_model_does_not_pass_either() -> None:
    outcome = legalized()
    [relu] = [node for node in outcome.model.graph if node.op_type == "Relu"]
    relu.op_type = "Neg"
    found = verification(outcome, "onnx")
    assert not found.passed
    assert "numeric" in {finding.rule for finding in found.findings}


def test_transposes_at_the_ends_of_inlined_bodies_cancel_and_the_model_is_legal_for_onnx() -> None:
    net = Net()
    value = net.input("x", (1, 8, 6, 6))
    for _ in range(3):
        value = net.node("Relu", net.conv(value, 8, 8))
    net.output(value)
    legal, report = legalize(net.model(), "nhwc", inline=True, check=True)
    assert report.ok
    assert report.account is not None
    assert report.account.transposes.count == 2
    assert report.after.transposes == 0, "they belong to the bodies' Transposes"
    assert {node.domain for node in legal.graph.node} == {""}
    assert verify(legal, "onnx", against=net.model(), samples=1).passed
    assert "layout-requirement" in {finding.rule for finding in verify(legal, "nhwc").findings}
