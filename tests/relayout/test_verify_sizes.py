"""With which sizes, and in which evaluator, the verifier runs a model whose dims are not all known."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from relayout.legalize import legalize
from relayout.report import Numeric
from relayout.verify import verify

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'

BRANCHES = """net (float[N,2,1] x, bool c) => (float[3,1,2] y) <float[3,2,1] a> {
    a = If (c) <
        then_branch = one () => (float[N,2,1] u) { u = Neg (x) },
        else_branch = other () => (float[N,2,1] v) { v = Abs (x) }
    >
    b = Transpose <perm = [0,2,1]> (a)
    y = Relu (b) }"""

ROUNDS = """net (float[2,N,1] x) => (y) {
    rounds = Constant <value = int64 {2}> ()
    y = Loop (rounds, "", x) <body = body (int64 i, bool going, float[2,5,1] state) => (bool on, float[2,5,1] next) {
        on = Identity (going)
        turned = Transpose <perm = [2,1,0]> (state)
        more = Exp (turned)
        next = Transpose <perm = [2,1,0]> (more)
    }> }"""

# onnxruntime has no kernel that multiplies bfloat16.
POOLS = """net (float[1,4,6,2] x, bfloat16[2] z) => (y, w) {
    w = Mul (z, z)
    turned = Transpose <perm = [0,3,1,2]> (x)
    pooled, places = MaxPool <kernel_shape = [2,2], strides = [2,2]> (turned)
    large = MaxUnpool <kernel_shape = [2,2], strides = [2,2]> (pooled, places)
    y = Transpose <perm = [0,2,3,1]> (large) }"""


def model_of(text: str) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(f"{HEADER} {text}"))


def compared(model: onnx.ModelProto | ir.Model, original: onnx.ModelProto) -> Numeric:
    verification = verify(model, against=original)
    assert verification.passed, verification.findings
    assert verification.numeric is not None
    assert verification.numeric.status == "compared", verification.numeric.reason
    return verification.numeric


@pytest.mark.parametrize("text", [BRANCHES, ROUNDS], ids=["a result is declared", "a body declares"])
def test_a_model_that_runs_with_one_size_alone_is_run_with_that(text: str) -> None:
    source = model_of(text)
    legal, _ = legalize(source)
    assert compared(legal, source).runtime == "onnxruntime"


def test_a_run_that_is_not_as_declared_is_no_baseline() -> None:
    """What is made of the model may rely on the seven rounds that it declares, of which it makes two."""
    source = model_of(
        """net (float[2] x) => (float[7,2] y) {
            rounds = Constant <value = int64 {2}> ()
            z = Loop (rounds, "") <body = body (int64 i, bool going) => (bool on, float[2] taken) {
                on = Identity (going)
                taken = Neg (x)
            }>
            y = Relu (z) }"""
    )
    verification = verify(source, against=source)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.status == "skipped"
    assert "is declared as [7,2] and comes out as [2, 2]" in str(verification.numeric.reason)


def test_the_reference_runs_functions_whose_attributes_are_not_all_given() -> None:
    source = model_of(POOLS)
    legal, _ = legalize(source, "nhwc")
    assert {"pads", "strides"} <= {name for function in legal.functions for name in function.attribute}
    assert compared(legal, source).runtime == "onnx.reference"
