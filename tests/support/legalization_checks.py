"""Legalization with the checks that every test of a whole model needs."""

from __future__ import annotations

from typing import Any

import onnx

import relayout
from relayout import Report, Verification
from relayout.ops.operand_roles import OWN_DOMAIN
from relayout.report.schema import Finding

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def checked(model: onnx.ModelProto, backend: Any, **options: Any) -> tuple[onnx.ModelProto, Report]:
    """Legalize; assert that the result is optimal and that the verifier has no findings."""
    legal, report = relayout.legalize(model, backend, check=True, **options)
    assert report.status == "optimal"
    assert report.verification is not None
    assert report.verification.findings == ()
    return legal, report


def findings_about(verification: Verification) -> list[Finding]:
    """The findings about the model: all but the warnings about the backend's own settings, such as prices of 0, and
    about some results that no input changes, such as a Softmax over one element. That none changes is a finding."""
    return [
        finding
        for finding in verification.findings
        if finding.rule != "backend-settings" and (finding.rule != "vacuous" or finding.found == "none")
    ]


def operators(model: onnx.ModelProto) -> list[str]:
    """The operators of the graph's nodes in order, with a domain prefix unless it is ONNX's own."""
    return [f"{node.domain}::{operator(node)}" if node.domain else node.op_type for node in model.graph.node]


def operator(node: onnx.NodeProto) -> str:
    """ONNX's name of a node's operator. A function for a second layout has the layout in its name, `Conv_NHWC_HWIO`."""
    return node.op_type.partition("_")[0] if node.domain == OWN_DOMAIN else node.op_type
