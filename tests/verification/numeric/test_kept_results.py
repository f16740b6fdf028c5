"""Outputs that no runtime computes: they need no run where the model computes them as the original does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import relayout
from relayout import Implementation, Layout
from relayout.backend import Writing
from relayout.report.schema import Numeric, Verification
from relayout.verification import verify
from relayout_backends.nhwc import Nhwc

# A plugin of an accelerator at the end of a detector. The types of its results are not known, so no runtime runs `z`.
DETECTOR = """<ir_version: 9, opset_import: ["" : 17, "TRT" : 1, "com.microsoft" : 1]>
    net (float[1,4,4,4] x, float[1,4,4,4] before) => (float y, int32 z, float[1,4,4,4] r) <float[4,4,3,3] w> {
        a = Conv <pads = [1,1,1,1]> (x, w)
        r = Relu (a)
        s = Sigmoid (a)
        k = Constant <value = float[2] {1.0, 2.0}> ()
        y, n = TRT.Detections <score = 0.5, classes = [1, 2]> (s, before, k)
        c = TRT.Count (n, s)
        z = Cast <to = 6> (c) }"""


def _model(text: str = DETECTOR) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.functions.clear()
    weights = np.random.default_rng(1).normal(size=(4, 4, 3, 3)).astype(np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def _numeric(verification: Verification | None) -> Numeric:
    assert verification is not None
    assert verification.numeric is not None
    return verification.numeric


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
@pytest.mark.parametrize("in_pieces", [False, True], ids=["as a whole", "in pieces"])
def test_outputs_of_operators_that_no_runtime_has_need_no_run(
    backend: str, in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_pieces:
        monkeypatch.setattr("relayout.verification.numeric.compare.largest_model", lambda: -1)
    _, report = relayout.legalize(_model(), backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    numeric = _numeric(report.verification)
    assert (numeric.status, numeric.kept, numeric.not_compared) == ("compared", ("y", "z"), ())
    assert [each.name for each in numeric.outputs if each.name == "r"] == ["r"]


CHANGES = {
    "an operand turned": ("(s, before, k)", "(t, before, k)"),
    "an input turned": ("(s, before, k)", "(s, u, k)"),
    "operands exchanged": ("(s, before, k)", "(before, s, k)"),
    "an operand left out": ("(s, before, k)", "(s, before)"),
    "another constant": ("{1.0, 2.0}", "{1.0, 3.0}"),
    "another number": ("score = 0.5", "score = 0.6"),
    "another order of numbers": ("[1, 2]", "[2, 1]"),
    "another result": ("(n, s)", "(y, s)"),
    "another operand of the second": ("(n, s)", "(n, before)"),
    "another operator behind": ("z = Cast <to = 6> (c)", "d = Neg (c) z = Cast <to = 6> (d)"),
    "another operator between": ("TRT.Count", "TRT.Sum"),
    "a rounded operand": ("(s, before, k)", "(v, before, k)"),
}


def test_an_operand_that_no_draw_changes_is_named() -> None:
    """A Transpose of it would not be seen."""
    still = "far = Constant <value = float {1e30}> () f = Div (a, far) one = Constant <value_float = 1.0> ()"
    model = _model(DETECTOR.replace("s = Sigmoid (a)", f"{still} s = Add (f, one)"))
    findings = verify(model, "onnx", against=model).findings
    assert ("vacuous", "s") in [(each.rule, each.found) for each in findings]


COPIED = (
    DETECTOR.replace("y, n = TRT", "d, n = TRT")
    .replace("c = TRT", "e = Identity (d) y = Identity (e) c = TRT")
    .replace("(float y,", "(float[9,9] y,")
    .replace("float[4,4,3,3] w", "float[4,4,3,3] w, float[9,9] d")
)


def test_a_result_may_have_the_name_of_its_copy() -> None:
    """The Identity is gone from the legal model, whose output has its name."""
    legal, report = relayout.legalize(_model(COPIED), "nhwc", check=True)
    assert "Identity" not in {node.op_type for node in legal.graph.node}
    assert report.verification is not None
    assert report.verification.passed
    assert _numeric(report.verification).kept == ("y", "z")


@pytest.mark.parametrize("run", [False, True])
def test_a_result_may_not_have_the_name_of_what_is_computed_from_it(run: bool) -> None:
    text = COPIED.replace("e = Identity (d)", "e = Transpose <perm = [1,0]> (d)")
    original, model = _model(text), _model(DETECTOR)
    verification = verify(model, "onnx", against=original, run=run)
    assert not verification.passed
    assert "has other results" in str([each.message for each in verification.findings])


@pytest.mark.parametrize("in_pieces", [False, True], ids=["as a whole", "in pieces"])
@pytest.mark.parametrize("change", CHANGES)
def test_no_output_that_is_computed_otherwise_is_taken_for_the_originals(
    change: str, in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_pieces:
        monkeypatch.setattr("relayout.verification.numeric.compare.largest_model", lambda: -1)
    old, new = CHANGES[change]
    made = """t = Transpose <perm = [0,1,3,2]> (s)
        u = Transpose <perm = [0,1,3,2]> (before)
        e = Round (s)
        v = Mul (e, s)"""
    text = DETECTOR.replace("k = Constant", f"{made} k = Constant")
    assert text.count(old) == 1
    original, model = _model(text), _model(text.replace(old, new))
    assert verify(original, "onnx", against=original).passed
    verification = verify(model, "onnx", against=original)
    assert not verification.passed
    changed = {"z"} if "(n, s)" in CHANGES[change] or "behind" in change or "between" in change else {"y", "z"}
    is_found = "numeric" in {each.rule for each in verification.findings}
    assert is_found or not changed & set(verification.numeric.kept if verification.numeric is not None else ())


# onnxruntime has this attention, and refuses it: its window is larger than the cache.
ATTENTION = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    net (float[1,4,64] x, float[1,4,32] z, float[1,2,8,16] past, int32[1] length)
            => (float[1,4,64] y, float[1,2,8,16] key, float[1,2,8,16] value) {
        total = Constant <value = int32 {8}> ()
        q = Cos (x)
        k = Sin (z)
        v = Sigmoid (z)
        a, key, value = com.microsoft.GroupQueryAttention
            <num_heads = 4, kv_num_heads = 2, local_window_size = 4096, sliding_window_cache = 1>
            (q, k, v, past, past, length, total)
        y = Relu (a) }"""


def test_an_operator_that_onnxruntime_refuses_is_cut_out_where_the_model_keeps_it() -> None:
    original = _model(ATTENTION)
    verification = verify(original, "onnx", against=original)
    assert verification.passed
    assert _numeric(verification).kept == ("key", "value")
    assert {each.name for each in _numeric(verification).outputs} >= {"y"}
    [note] = (each for each in verification.findings if each.rule == "cut")
    assert re.search("GroupQueryAttention: .*local_window_size", str(note.found))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(q, k, v,", "(q, v, k,"),
        ("local_window_size = 4096", "local_window_size = 2048"),
        ("num_heads = 4, kv", "num_heads = 8, kv"),
        ("int32 {8}", "int32 {7}"),
        ("Cos", "Sin"),
        ("Relu", "Abs"),
        ("a, key, value =", "a, value, key ="),
    ],
)
def test_an_operator_that_onnxruntime_refuses_is_not_taken_for_another(old: str, new: str) -> None:
    original, model = _model(ATTENTION), _model(ATTENTION.replace(old, new))
    assert not verify(model, "onnx", against=original).passed


class Anywhere(Nhwc):
    """Writes the custom operator as it is, on channels last."""

    name = "anywhere"

    def implementations(self, node: Any) -> Any:
        if node.domain != "acme":
            return super().implementations(node)
        last = Layout.parse("NHWC")
        return [Implementation((last,), (last,), rewrite=_write_alike)]


def _write_alike(writing: Writing) -> None:
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("Quant", [writing.read(0)], {}, shape=shape, domain="acme"))


@pytest.mark.parametrize("operator", ["Relu", "Sigmoid"])
def test_what_a_backend_writes_for_an_operator_stands_for_the_operators_results(operator: str) -> None:
    """So the nodes behind it are compared, though no runtime computes it."""
    text = """<ir_version: 9, opset_import: ["" : 17, "acme" : 1]>
        net (float[1,4,6,6] x) => (float[1,4,6,6] y) <float[4,4,3,3] w, float[1,4,6,6] q> {
            a = Conv <pads = [1,1,1,1]> (x, w)
            q = acme.Quant (a)
            b = Relu (q)
            y = Conv <pads = [1,1,1,1]> (b, w) }"""
    legal, report = relayout.legalize(_model(text), Anywhere, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert _numeric(report.verification).not_compared == ()
    [behind] = (node for node in legal.graph.node if node.op_type == "Relu")
    behind.op_type = operator
    assert verify(legal, Anywhere, against=_model(text)).passed is (operator == "Relu")
