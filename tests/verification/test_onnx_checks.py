"""The verifier's checks by onnx: declared types against those that the operators give."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import relayout
from relayout.model.io import read_model
from relayout.verification.onnx_checks import checked_by_onnx

MODEL = """
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[2, 3] x, int64[2] given) => (float[3, 2] y, float[4, 5] z)
    <float[2, 3] a, float[3, 2] b, float[4, 5] c, int64[2] order, float[3] w = {1, 2, 3}, float[3] w>
    { a = Add(x, w)
      order = Constant<value = int64[2] {3, 2}>()
      b = Reshape(a, order)
      y = Relu(b)
      c = Reshape(x, given)
      z = Relu(c) }"""

FAULTS = {
    "of a value": ("float[3, 2] b", "float[2, 3] b"),
    "of a value's elements": ("float[2, 3] a", "double[2, 3] a"),
    "of an output": ("float[3, 2] y", "float[3, 4] y"),
    "of a constant": ("float[3] w>", "float[4] w>"),
    # Nothing infers this one, and its reader contradicts it.
    "of a size that is an input": ("float[4, 5] c", "float[4, 6] c"),
}


def findings(text: str) -> list[str]:
    return [finding.rule for finding in checked_by_onnx(ir.from_proto(onnx.parser.parse_model(text)))[0]]


def test_declarations_that_agree_are_sound() -> None:
    assert findings(MODEL) == []
    # Without the size that is an input, the operators give every type that is declared.
    assert findings(MODEL.replace("Reshape(x, given)", "Pad(x, sizes)").replace("float[3] w>", PADDING)) == []


PADDING = "float[3] w, int64[4] sizes = {0, 0, 2, 2}>"


@pytest.mark.parametrize(("right", "wrong"), FAULTS.values(), ids=FAULTS)
def test_a_declaration_that_contradicts_the_operators_is_found(right: str, wrong: str) -> None:
    assert right in MODEL
    assert "shape" in findings(MODEL.replace(right, wrong))


NORMALIZED = """
    <ir_version: 8, opset_import: ["" : 14]>
    g (float[2, 3] x, float[3] w, bool c) => (float[2, 3] y) <float[2, 3] n> {
      n = LayerNormalization(x, w)
      y = If (c) <then_branch = t () => (float[2, 3] p) { p = SimplifiedLayerNormalization(n, w) },
                  else_branch = e () => (float[2, 3] r) { r = Relu(n) }> }"""


def test_operators_that_onnxruntime_has_in_onnx_s_domain_are_sound() -> None:
    assert findings(NORMALIZED) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("Relu(n)", "Rellu(n)"), ("Relu(n)", "Relu(n, n)"), ("float[2, 3] n>", "float[3, 2] n>")],
    ids=["another operator that ONNX lacks", "too many operands", "a shape"],
)
def test_faults_beside_them_are_found(right: str, wrong: str) -> None:
    assert right in NORMALIZED
    assert findings(NORMALIZED.replace(right, wrong))


def test_large_tensors_that_an_operator_has_as_attributes_are_sound() -> None:
    table = ", ".join(map(str, range(300)))
    model = f"""
        <ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>
        g (int64[2] x) => (int64[300] y) {{
          coded = ai.onnx.ml.LabelEncoder<keys_tensor = int64[300] {{{table}}}, values_tensor = int64[300] {{{table}}},
                                          default_tensor = int64[1] {{0}}>(x)
          large = Constant<value = int64[300] {{{table}}}>()
          first = ReduceMax<keepdims = 0>(coded)
          y = Add(first, large) }}"""
    assert findings(model) == []
    # The Constant was left out of the check, so there are no bytes for the writer of a file.
    assert checked_by_onnx(ir.from_proto(onnx.parser.parse_model(model)))[1] is None


BRANCHES = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[2, 300] x, bool c) => (float[2, 300] y, float[300] z) {
      y, z = If (c) <
        then_branch = t () => (float[2, 300] p, float[300] k) { k = Constant<value = float[1] {0}>() p = Add(x, k) },
        else_branch = e () => (float[2, 300] q, float[300] w)
          <float[300] w, float[2, 300] k> { q = Add(x, k) }> }"""


def test_large_constants_in_branches_may_be_results_and_have_equal_names() -> None:
    model = onnx.parser.parse_model(BRANCHES)
    then, other = (attribute.g for attribute in model.graph.node[0].attribute)
    then.node[0].attribute[0].t.CopyFrom(large_constant(300))
    other.initializer.extend([large_constant(300, name="w"), large_constant(2, 300, name="k")])
    del other.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    assert checked_by_onnx(ir.from_proto(model))[0] == []


def large_constant(*shape: int, name: str = "") -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name)


def test_values_of_known_shapes_and_unknown_types_are_sound(caplog: pytest.LogCaptureFixture) -> None:
    """Reshapes behind a custom operator: the element type is unknown, but the shape is known in part."""
    text = """
        <ir_version: 9, opset_import: ["" : 17, "acme" : 1]>
        g (float[2, 8, 6] x) => (float[2, 6, 8] y) <int64[4] a = {0, -1, 3, 2}, int64[3] b = {0, -1, 3}> {
          p = acme.Pack (x)
          q = Reshape (p, a)
          r = Reshape (q, b)
          y = acme.Unpack (r) }"""
    model = read_model(onnx.parser.parse_model(text))
    shapes = {value.name: value.shape for node in model.graph for value in node.outputs if value.type is None}
    assert shapes["q"] is not None
    assert checked_by_onnx(model)[0] == []
    # A legal model has metadata for such a value.
    next(value for node in model.graph for value in node.outputs if value.name == "r").metadata_props["key"] = "text"
    assert checked_by_onnx(model)[0] == []
    assert caplog.text == ""


@pytest.mark.parametrize("options", [{}, {"check": True}, {"inline": True}])
def test_an_objection_says_so_where_the_original_meets_one_as_well(options: dict[str, bool]) -> None:
    """From opset 11 to 12 the `roi` of a Resize may not be left out."""
    text = """
        <ir_version: 8, opset_import: ["" : 11]>
        g (float[1, 4, 4, 2] x) => (float[1, 8, 8, 2] y) <float[4] scales = {1, 1, 2, 2}>
        { a = Transpose <perm = [0, 3, 1, 2]> (x)
          b = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric"> (a, , scales)
          y = Transpose <perm = [0, 2, 3, 1]> (b) }"""
    model = onnx.parser.parse_model(text)
    told = "not a valid ONNX model; onnx.checker does not accept the original either"
    legal, report = relayout.legalize(model, output_layouts={"y": "NCHW"}, **options)
    assert [finding.message for finding in report.findings if finding.rule == "checker"] == [told]
    assert not report.ok
    (found,) = (each for each in relayout.verify(legal, against=model, run=False).findings if each.rule == "checker")
    assert found.message == told
    sound = onnx.parser.parse_model(text.replace("(a, , scales)", "(a, scales, scales)"))
    (found,) = (
        each for each in relayout.verify(model, "onnx", against=sound, run=False).findings if each.rule == "checker"
    )
    assert found.message == "not a valid ONNX model"
