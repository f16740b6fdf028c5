"""Operators that no run reaches are compared with the original's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from onnx import ModelProto, NodeProto

import relayout
from relayout.backend import Backend, Implementation, Reordering, TensorType
from relayout.layout.layout import Layout
from relayout.verification import verify
from relayout.verification.numeric import compare, in_pieces

CUSTOM = """net (float[2,4,6,6] x, float[4,4,3,3] w) => (float[2,4,6,6] y, float[2,4,6,6] z)
    <float[2,4,6,6] p, float[2,4,6,6] q> {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    p, q = acme.Halves <mode = 3, table = [1.0, 2.0], tag = "left"> (a)
    dead = acme.Unread (a)
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (p, w)
    z = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (q, w) }"""
BRANCH = """net (float[2,4,6,6] x, float[4,4,3,3] w, bool c) => (float[2,4,6,6] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    i = If (c) <
        then_branch = then () => (float[2,4,6,6] t) { s = Sub (a, a)  t = acme.Halves <mode = 3> (s) },
        else_branch = other () => (float[2,4,6,6] e) { e = Softmax <axis = 1> (a) }>
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (i, w) }"""
# ONNX lets both branches name their values alike, as tf2onnx does with loops that it makes of one function.
ALIKE = """net (float[2,4,6,6] x, float[4,4,3,3] w, bool c) => (float[2,4,6,6] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    i = If (c) <
        then_branch = then () => (float[2,4,6,6] r) { s = Sin (a)  t = Cos (a)  r = Sub (s, t) },
        else_branch = other () => (float[2,4,6,6] r) { s = Exp (a)  t = Tanh (a)  r = Div (s, t) }>
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (i, w) }"""
# In these too, and the attributes and the operator differ.
NAMESAKES = """net (float[2,4,6,6] x, float[4,4,3,3] w, bool c) => (float[2,4,6,6] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    i = If (c) <
        then_branch = then () => (float[2,4,6,6] r) { s = LeakyRelu <alpha = 0.1> (a)  r = acme.Halves (s) },
        else_branch = other () => (float[2,4,6,6] r) { s = LeakyRelu <alpha = 0.5> (a)  r = Tanh (s) }>
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (i, w) }"""
# Nothing but the branch tells them apart.
DIFFERENT = """net (float[2,4,6,6] x, float[4,4,3,3] w, bool c) => (float[2,4,6,6] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    i = If (c) <
        then_branch = then () => (float[2,4,6,6] t) { s = Sin (a)  t = acme.Halves (s) },
        else_branch = other () => (float[2,4,6,6] e) { r = Exp (a)  e = Tanh (r) }>
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (i, w) }"""
STRINGS = """net (float[2,4,6,6] x, float[4,4,3,3] w, string[3] s) => (float[2,4,6,6] y, string[3] f) {
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    f = ai.onnx.ml.LabelEncoder <keys_strings = ["a","b"], values_strings = ["u","v"], default_string = "z"> (s) }"""


def _model(text: str) -> ModelProto:
    imports = '["" : 18, "acme" : 1, "ai.onnx.ml" : 2]'
    model = onnx.parser.parse_model(f"<ir_version: 9, opset_import: {imports}> {text}")
    inner = [a.g for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    for number, node in enumerate(node for graph in (model.graph, *inner) for node in graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


def _node(model: ModelProto, operator: str) -> NodeProto:
    inner = [a.g for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return next(node for graph in (model.graph, *inner) for node in graph.node if node.op_type == operator)


def _attribute(operator: str, place: int, field: str, value: object) -> Callable[[ModelProto], object]:
    return lambda model: setattr(_node(model, operator).attribute[place], field, value)


def _read_another(model: ModelProto) -> None:
    operands = _node(model, "Sub").input
    operands[0], operands[1] = operands[1], operands[0]


def _exchange(model: ModelProto) -> None:
    results = _node(model, "Halves").output
    results[0], results[1] = results[1], results[0]


def _negate(model: ModelProto) -> None:
    branch = next(a.g for node in model.graph.node for a in node.attribute if a.name == "then_branch")
    at = next(n for n, node in enumerate(branch.node) if node.op_type == "Sub")
    result, branch.node[at].output[0] = branch.node[at].output[0], "before"
    branch.node.insert(at + 1, onnx.helper.make_node("Neg", ["before"], [result], "negated"))


def _exchange_branches(model: ModelProto) -> None:
    one, other = (attribute.g for attribute in _node(model, "If").attribute)
    for node in (*one.node, *other.node):
        node.name = ""
    kept = onnx.GraphProto.FromString(one.SerializeToString())
    one.CopyFrom(other)
    other.CopyFrom(kept)


WRONG: dict[str, tuple[str, Callable[[ModelProto], object]]] = {
    "an integer of an unknown operator": (CUSTOM, _attribute("Halves", 0, "i", 4)),
    "its list of floats": (CUSTOM, lambda model: _node(model, "Halves").attribute[1].floats.reverse()),
    "its text": (CUSTOM, _attribute("Halves", 2, "s", b"right")),
    "an attribute that is gone": (CUSTOM, lambda model: _node(model, "Halves").attribute.pop(0)),
    "an attribute that is new": (
        CUSTOM,
        lambda model: _node(model, "Halves").attribute.append(onnx.helper.make_attribute("more", 1)),
    ),
    "its results exchanged": (CUSTOM, _exchange),
    "its name": (CUSTOM, lambda model: setattr(_node(model, "Halves"), "op_type", "Halved")),
    "its domain": (CUSTOM, lambda model: setattr(_node(model, "Halves"), "domain", "ai.onnx.ml")),
    "its version": (
        CUSTOM,
        lambda model: next(o for o in model.opset_import if o.domain == "acme").ClearField("version"),
    ),
    "a known operator made unknown": (CUSTOM, lambda model: setattr(_node(model, "Conv"), "domain", "acme")),
    "an operator beside it in a branch": (BRANCH, lambda model: setattr(_node(model, "Sub"), "op_type", "Add")),
    "one inserted beside it": (BRANCH, _negate),
    "its attribute in a branch": (BRANCH, _attribute("Halves", 0, "i", 4)),
    "the other branch": (DIFFERENT, _exchange_branches),
    "another value of its branch": (ALIKE, _read_another),
    "an attribute of a namesake": (NAMESAKES, _attribute("LeakyRelu", 0, "f", 0.5)),
    "the operator of a namesake": (NAMESAKES, lambda model: setattr(_node(model, "Tanh"), "op_type", "Sin")),
    "a text that no draw gives": (STRINGS, lambda model: _node(model, "LabelEncoder").attribute[0].strings.reverse()),
}


@pytest.mark.parametrize("text", [CUSTOM, BRANCH, ALIKE, NAMESAKES, DIFFERENT, STRINGS])
def test_a_legal_model_keeps_its_operators(text: str) -> None:
    original = _model(text)
    legal, _ = relayout.legalize(original, "nhwc")
    assert verify(legal, "nhwc", against=original).passed


@pytest.mark.parametrize("kind", WRONG)
def test_an_operator_that_no_run_reaches_is_compared(kind: str) -> None:
    text, change = WRONG[kind]
    original = _model(text)
    legal, _ = relayout.legalize(original, "nhwc")
    change(legal)
    verification = verify(legal, "nhwc", against=original, static=True)
    rules = {finding.rule for finding in verification.findings if finding.severity == "error"}
    assert rules & {"operator", "attribute", "checker", "dataflow"}, verification


def test_a_fused_product_may_read_its_batch_elsewhere_than_the_original() -> None:
    """onnxruntime's own fusions write all attributes out, those of 0 too."""
    original = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
        net (float[5,2,3,7] x, float[4,2,3,7] w) => (float[2,3,5,4] y) {
            rows = Transpose <perm = [1,2,0,3]> (x)
            columns = Transpose <perm = [1,2,3,0]> (w)
            [product] y = com.microsoft.FusedMatMul
                <alpha = 0.5, transA = 0, transB = 0, transBatchA = 0, transBatchB = 0> (rows, columns) }""")
    legal, report = relayout.legalize(original, "onnx")
    assert report.after.transposes == 0
    assert verify(legal, "onnx", against=original).passed
    next(each for each in _node(legal, "FusedMatMul").attribute if each.name == "transBatchA").i = 0
    assert not verify(legal, "onnx", against=original, static=True).passed


class Packing(Backend):
    """MaxPool on NHWC data, which an operator of its own makes."""

    name = "packing"
    own: frozenset[tuple[str, str]] = frozenset()

    def implementations(self, node: ir.Node) -> list[Implementation]:
        nhwc = (Layout.parse("NHWC"),)
        return [Implementation(nhwc, nhwc)] if node.op_type == "MaxPool" else [*super().implementations(node)]

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        return Reordering(100, _pack) if str(target) == "NHWC" else None

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return self.own


def _pack(writing: Any) -> None:
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("Pack", [writing.read(0)], shape=shape, domain="com.acme"))


@pytest.mark.parametrize("own", [frozenset(), frozenset({("com.acme", "Pack")})])
def test_an_operator_of_the_backends_own_passes_where_the_backend_names_it(own: frozenset[tuple[str, str]]) -> None:
    original = _model("net (float[1,4,8,8] x) => (float[1,4,7,7] y) { y = MaxPool <kernel_shape = [2,2]> (x) }")
    backend = Packing()
    backend.own = own
    legal, _ = relayout.legalize(original, backend)
    found = verify(legal, backend, against=original, static=True).findings
    assert [each.found for each in found if each.severity == "error"] == ["com.acme::Pack"] * (not own)


@pytest.mark.parametrize(("backend", "severity"), [("nhwc", "error"), ("x86-nchwc", "error"), ("xla-cpu", "warning")])
@pytest.mark.parametrize("claims", [False, True])
def test_an_unknown_operator_that_was_inserted_is_found(backend: str, severity: str, claims: bool) -> None:
    original = _model(CUSTOM)
    legal, _ = relayout.legalize(original, backend)
    legal.opset_import.append(onnx.helper.make_opsetid("evil", 1))
    reader = _node(legal, "Halves")
    inserted = onnx.helper.make_node("Other", [reader.input[0]], ["other"], "other", domain="evil")
    if claims:
        inserted.metadata_props.add(key="relayout.written_for", value="Sigmoid")
    legal.graph.node.insert(list(legal.graph.node).index(reader), inserted)
    reader.input[0] = "other"
    found = verify(legal, backend, against=original, static=True).findings
    assert [each.severity for each in found if each.rule == "operator"] == [severity]


PLAIN = """net (float[2,4,6,6] x, float[4,4,3,3] w) => (float[2,4,6,6] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    b = Relu (a)
    y = Add (b, x) }"""


@pytest.mark.parametrize("other", ["Elu", "Abs", "Softmax"])
def test_another_operator_is_found_without_a_run(other: str) -> None:
    original = _model(PLAIN)
    legal, _ = relayout.legalize(original, "nhwc")
    next(node for node in legal.graph.node if node.op_type == "Relu").op_type = other
    verification = verify(legal, "nhwc", against=original, run=False)
    assert ("operator", other) in {(each.rule, each.found.strip(":")) for each in verification.findings}
    assert not verification.passed


def test_an_operator_may_make_the_result_of_view_operators_that_are_gone() -> None:
    original = _model("""net (float[2,4,6,8] x) => (float[2,4,6,8] y) {
        t = Transpose <perm = [0,2,3,1]> (x)
        r = Softplus (t)
        u = Identity (r)
        y = Transpose <perm = [0,3,1,2]> (u) }""")
    for node in original.graph.node:
        node.name = ""
    legal, _ = relayout.legalize(original, "onnx")
    assert [node.op_type for node in legal.graph.node] == ["Softplus"]
    assert verify(legal, "onnx", against=original, run=False).passed
    legal.graph.node[0].op_type = "Softsign"
    assert not verify(legal, "onnx", against=original, run=False).passed


def test_another_operator_with_integers_as_results_is_found_without_a_run() -> None:
    """Only integers that are made of integers, or of a shape, may be a shape or indices."""
    original = _model("""net (float[2,4,6,8] x) => (int64[2,1,6,8] y, int64[4] s) {
        y = ArgMax <axis = 1> (x)
        s = Shape (x) }""")
    legal, _ = relayout.legalize(original, "nhwc")
    assert verify(legal, "nhwc", against=original, run=False).passed
    _node(legal, "ArgMax").op_type = "ArgMin"
    found = verify(legal, "nhwc", against=original, run=False).findings
    assert {each.rule for each in found if each.severity == "error"} == {"operator"}


def test_another_operator_is_found_where_the_models_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "largest_model", lambda: -1)
    monkeypatch.setattr(in_pieces, "baseline_of", lambda *given: ["no runtime is installed"])
    original = _model(PLAIN)
    same = verify(original, "onnx", against=original, static=True)
    assert same.numeric is not None
    assert (same.passed, same.numeric.status) == (True, "skipped")
    found = verify(_model(PLAIN.replace("Relu", "Elu")), "onnx", against=original, static=True)
    assert {(each.rule, each.found) for each in found.findings if each.severity == "error"} == {("operator", "::Elu")}


def test_conversions_that_a_runtime_knows_pass_without_a_run_where_the_backend_names_them() -> None:
    net = Net()
    net.output(net.node("Softmax", net.conv(net.input("x", (1, 32, 9, 9)), 32, 32), axis=3))
    original = net.model()
    legal, _ = relayout.legalize(original, "x86-nchwc")
    assert {"ReorderInput", "ReorderOutput"} < {node.op_type for node in legal.graph.node}
    notes = relayout.verify(legal, "x86-nchwc", against=original, run=False).findings
    assert {note.severity for note in notes} == {"note"}
    assert {note.found for note in notes if note.rule == "operator"} == {"com.microsoft.nchwc::Conv"}
    found = relayout.verify(legal, "onnx", against=original, run=False).findings
    assert {each.message for each in found if each.rule == "operator"} >= {
        "this ReorderInput is not the original's",
        "this ReorderOutput is not the original's",
    }


def test_what_stands_for_an_operator_that_no_run_compares_it_with_is_named() -> None:
    text = "net (float[1,4,8] x) => (float[1,4,8] y) {{ a = {} (x)  y = Relu (a) }}"
    original, model = _model(text.format("LogSoftmax")), _model(text.format("Sigmoid"))
    model.graph.node[0].metadata_props.add(key="relayout.written_for", value="LogSoftmax")
    found = verify(model, "onnx", against=original, run=False).findings
    assert [(each.rule, each.severity, each.found) for each in found] == [("operator", "note", "Sigmoid")]
    assert not verify(model, "onnx", against=original).passed


def test_texts_and_types_in_attributes_are_compared() -> None:
    keys = onnx.helper.make_tensor("keys", onnx.TensorProto.STRING, [2], [b"cat", b"dog"])
    places = onnx.helper.make_tensor("places", onnx.TensorProto.INT64, [2], [0, 1])
    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, [2])
    nodes = [
        onnx.helper.make_node(
            "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_tensor=keys, values_tensor=places
        ),
        onnx.helper.make_node("Optional", [], ["o"], type=tensor),
        onnx.helper.make_node("OptionalHasElement", ["o"], ["has"]),
    ]
    original = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes,
            "texts",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [2])],
            [
                onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2]),
                onnx.helper.make_tensor_value_info("has", onnx.TensorProto.BOOL, []),
            ],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 4)],
        ir_version=9,
    )
    legal, _ = relayout.legalize(original, "onnx")
    assert verify(legal, "onnx", against=original, static=True).passed
    legal.graph.node[0].attribute[0].t.string_data[0] = b"cow"
    found = verify(legal, "onnx", against=original, run=False, static=True)
    assert "attribute" in {each.rule for each in found.findings if each.severity == "error"}


def test_a_dropout_that_is_gone_needs_no_names_of_nodes() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[1,8,9,9] x) => (float[1,8,9,9] y) {
            a = Transpose <perm = [0, 2, 3, 1]> (x) b = Sinh (a) c = Dropout (b)
            y = Transpose <perm = [0, 3, 1, 2]> (c) }"""
    )
    legal, _ = relayout.legalize(model, "onnx")
    assert [node.op_type for node in legal.graph.node] == ["Sinh"]
    assert verify(legal, "onnx", against=model, run=False).passed
