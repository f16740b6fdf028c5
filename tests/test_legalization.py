"""`finish` returns the model that was verified."""

from __future__ import annotations

import onnx
from command_line import CHANNELS_LAST

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


def test_a_wrong_model_does_not_pass_without_its_functions_either() -> None:
    outcome = legalized()
    [relu] = [node for node in outcome.model.graph if node.op_type == "Relu"]
    relu.op_type = "Neg"
    found = verification(outcome, "onnx")
    assert not found.passed
    assert "numeric" in {finding.rule for finding in found.findings}
