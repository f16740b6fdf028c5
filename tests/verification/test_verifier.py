"""The verifier accepts legal models and finds every violation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from subprocess import run
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from verified_models import annotate, kernel, legal, model_of, node_of, raw, rules

from relayout import legalize
from relayout.backend import Backend
from relayout.errors import BackendError, InputError, UsageError
from relayout.layout.layout import Layout
from relayout.report.render import render_text
from relayout.report.schema import Account, Charge, Conversion, Entry, Report, Totals
from relayout.verification.verifier import check_report, verify


def test_a_legal_model_passes_and_computes_what_its_original_does() -> None:
    verification = verify(legal(), "nhwc", against=raw())
    assert verification.findings == ()
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"
    (output,) = verification.numeric.outputs
    assert output.name == "y"
    assert output.max_rel <= output.tolerance < output.sensitivity


def test_a_raw_model_lists_each_operand_that_breaks_the_contract() -> None:
    verification = verify(raw(), "nhwc")
    assert not verification.passed
    found = [(f.rule, f.node, f.operand, f.expected, f.found) for f in verification.findings]
    assert found == [
        ("layout-requirement", "conv", 0, "NHWC", "NCHW"),
        ("layout-requirement", "conv", 1, "HWIO", "OIHW"),
        ("layout-requirement", "pool", 0, "NHWC", "NCHW"),
    ]


def test_a_legal_model_for_one_backend_breaks_the_contract_of_another() -> None:
    assert rules(verify(legal(), "nchw")) == {"layout-requirement"}
    assert verify(raw(), "nchw").passed


def test_models_come_as_a_path_a_protobuf_or_bytes(tmp_path: object) -> None:
    proto = ir.to_proto(legal())
    assert verify(proto, "nhwc").passed
    assert verify(proto.SerializeToString(), "nhwc", against=ir.to_proto(raw())).passed


def test_an_invalid_model_is_an_error_and_no_finding() -> None:
    with pytest.raises(InputError):
        verify(b"not a model", "onnx")


def test_a_network_may_transpose_its_image_and_use_tokens_as_channels() -> None:
    turned = """net (float[1,3,8,9] x, float[4,3,1,1] w, float[5,4,1,1] v) => (y) {
        a = Conv (x, w)
        t = Transpose <perm = [0,1,3,2]> (a)
        b = Conv (t, v)
        u = Transpose <perm = [0,2,1,3]> (b)
        y = MaxPool <kernel_shape = [1,1]> (u) }"""
    model = model_of(turned, {"w": kernel(4, 3, 1, 1), "v": kernel(5, 4, 1, 1)})
    assert verify(model, "onnx", against=model).findings == ()


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda m: node_of(m, "to_nhwc").attributes.add(ir.AttrInt64s("perm", [0, 3, 2, 1])), "layout-annotation"),
        (lambda m: node_of(m, "soft").attributes.add(ir.AttrInt64("axis", 2)), "element-order"),
        (lambda m: node_of(m, "soft").attributes.add(ir.AttrInt64("axis", 2)), "numeric"),
        (lambda m: node_of(m, "pool").attributes.add(ir.AttrString("data_layout", "NCHW")), "function-body"),
        (lambda m: node_of(m, "conv").attributes.add(ir.AttrString("kernel_layout", "HWOI")), "function-body"),
        (lambda m: node_of(m, "conv").attributes.add(ir.AttrString("data_layout", "N?")), "function-body"),
        (lambda m: node_of(m, "conv").attributes.add(ir.AttrInt64s("pads", [1, 1, 1, 2])), "shape"),
        (lambda m: m.functions.pop(("relayout", "MaxPool", "")), "function-missing"),
        (lambda m: annotate(m, "a", layout="NCHW"), "layout-annotation"),
        (lambda m: annotate(m, "a", layout="NHW"), "layout-annotation"),
        (lambda m: annotate(m, "a", layout="N!HW"), "layout-annotation"),
        (lambda m: annotate(m, "a", order="0,3,2,1"), "layout-annotation"),
        (lambda m: annotate(m, "a", order="0,1,1,2"), "layout-annotation"),
        (lambda m: annotate(m, "a", order="nhwc"), "layout-annotation"),
        (lambda m: setattr(m.graph.outputs[0], "name", "z"), "boundary"),
    ],
)
def test_each_fault_breaks_its_rule(spoil: Callable[[ir.Model], object], rule: str) -> None:
    model = legal()
    spoil(model)
    verification = verify(model, "nhwc", against=raw())
    assert not verification.passed
    assert rule in rules(verification)


def test_a_body_that_transposes_otherwise_than_its_attributes_say_is_found() -> None:
    model = legal()
    function = model.functions["relayout", "Conv", ""]
    transposes = [node for node in function if node.op_type == "Transpose"]
    transposes[1].attributes.add(ir.AttrInt64s("perm", [2, 3, 0, 1]))
    (finding,) = [f for f in verify(model, "nhwc").findings if f.rule == "function-body"]
    assert (finding.node, finding.operand, finding.expected) == ("conv", 1, "input 1 transposed by (3, 2, 0, 1)")


def test_a_body_with_an_attribute_of_its_own_is_found() -> None:
    model = legal()
    (conv,) = [node for node in model.functions["relayout", "Conv", ""] if node.op_type == "Conv"]
    conv.attributes.add(ir.AttrInt64s("dilations", [2, 2]))
    assert "function-body" in rules(verify(model, "nhwc"))


@pytest.mark.parametrize("attribute", ["group", "strides"])
def test_a_body_that_reads_an_attribute_which_the_call_does_not_have_is_found(attribute: str) -> None:
    model = legal()
    node_of(model, "conv").attributes.pop(attribute, None)
    (conv,) = [node for node in model.functions["relayout", "Conv", ""] if node.op_type == "Conv"]
    conv.attributes.add(ir.RefAttr(attribute, "pads", ir.AttributeType.INTS))
    (finding,) = [f for f in verify(model, "nhwc").findings if f.rule == "function-body"]
    assert (finding.expected, finding.found) == (f"no attribute {attribute}", "attribute pads")


def test_a_constant_in_place_of_an_attribute_that_the_call_does_not_have_is_found() -> None:
    model = legal()
    function = model.functions["relayout", "Conv", ""]
    (conv,) = [node for node in function if node.op_type == "Conv"]
    function.attributes["dilations"] = ir.Attr("dilations", ir.AttributeType.INTS, None)
    conv.attributes.add(ir.AttrInt64s("dilations", [2, 2]))
    assert "function-body" in rules(verify(model, "nhwc"))


def test_a_model_that_contradicts_itself_is_compared_with_the_original_as_far_as_it_goes() -> None:
    proto = ir.to_proto(legal())
    for node in proto.graph.node:
        if node.op_type == "Transpose":
            del node.input[:]
    verification = verify(proto, "nhwc", against=raw())
    assert not verification.passed


@pytest.mark.parametrize("lacks", ["operands", "results", "a dtype"])
def test_a_model_that_contradicts_itself_is_checked_against_its_report_as_far_as_it_goes(lacks: str) -> None:
    model, claimed = legalize(raw(), "nhwc")
    proto = ir.to_proto(model)
    (node,) = [node for node in proto.graph.node if node.op_type == "Transpose" and node.input[0] == "x"]
    if lacks == "operands":
        del node.input[:]
    elif lacks == "results":
        del node.output[:]
    else:
        proto.graph.initializer[0].ClearField("data_type")
    verification = verify(proto, "nhwc", against=raw(), report=claimed, max_bytes=0)
    assert "shape" in rules(verification)


def test_a_dropped_transpose_is_a_finding_and_no_exception() -> None:
    model = legal()
    node = node_of(model, "to_nhwc")
    node_of(model, "conv").replace_input_with(0, node.inputs[0])
    model.graph.remove(node, safe=True)
    verification = verify(model, "nhwc", against=raw())
    assert "shape" in rules(verification)


def test_a_custom_operator_has_one_note_for_all_its_nodes() -> None:
    model = model_of(
        "net (float[2,3] x) => (float[2,3] y) { [a] v = mine.Odd (x) [b] w = mine.Odd (v) y = mine.Own (w) }"
    )
    notes = [finding for finding in verify(model, "nhwc").findings if finding.rule == "function-missing"]
    assert [(note.node, note.found) for note in notes] == [("a", "mine::Odd, 2 nodes"), ("Own of y", "mine::Own")]


def test_without_a_backend_it_is_the_one_that_the_model_records() -> None:
    model, report = legalize(raw(), "convert-layout", backend_options={"desired_layouts": {"Conv": ["NHWC"]}})
    assert report.verification is not None
    assert report.verification.passed
    assert model.metadata_props["relayout.backend"] == "convert-layout"
    assert verify(model, against=raw()).passed
    del model.metadata_props["relayout.backend_options"]
    model.metadata_props["relayout.backend"] = "nchw"
    assert rules(verify(model)) == {"layout-requirement"}
    with pytest.raises(UsageError, match="records no backend"):
        verify(raw())


@pytest.mark.parametrize("report", ["report.json", {"status": "optimal"}])
def test_what_is_no_report_is_said_to_be_none(report: Any) -> None:
    with pytest.raises(UsageError, match="not a report") as caught:
        verify(raw(), "onnx", report=report)
    assert "model_validate_json" in caught.value.hint
    with pytest.raises(UsageError, match="not a report"):
        render_text(report)


def test_nodes_without_a_name_are_no_pair() -> None:
    original = model_of("net (float[4] x) => (float[4] y) { a = Relu (x)  n = Neg (x)  b = Relu (n)  y = Sub (a, b) }")
    model = model_of("net (float[4] x) => (float[4] y) { p = Relu (x)  q = Neg (x)  r = Relu (q)  y = Sub (p, r) }")
    assert verify(model, "onnx", against=original).findings == ()


class Failing(Backend):
    name = "failing"

    def is_satisfied_by(self, tensor: object, required: Layout, current: Layout | None) -> bool:
        raise ZeroDivisionError

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return "NCHW"


def test_a_backend_that_fails_is_named() -> None:
    with pytest.raises(BackendError, match="is_satisfied_by"):
        verify(model_of("net (float[1,2,3,4] x) => (float[1,2,3,4] y) { y = Relu (x) }"), Failing())


def report(**fields: object) -> Report:
    totals = Totals(nodes=4, transposes=1, bytes=100)
    facts = {"status": "optimal", "cost": 100, "bound": 100, "backend": "nhwc", "before": totals, "after": totals}
    return Report.model_validate({**facts, "account": account(100), "conversions": (conversion(100),), **fields})


def conversion(spent: int, kind: str = "transpose") -> Conversion:
    padding = spent if kind == "pad" else 0
    facts = {"value": "x", "from": "NCHW", "to": "NHWC", "kind": kind, "bytes": spent, "padding": padding}
    return Conversion.model_validate(facts)


def account(moved: int, **others: Entry) -> Account:
    return Account(transposes=Entry(count=bool(moved), bytes=moved, cost=moved), **others)


DEAR, CHARGES = Entry(count=1, bytes=7, cost=7), (Charge(node="Conv 'c'", layout="NHWC", bytes=7, cost=7),)
FEW, DEARER = Entry(count=2, bytes=7, cost=7), (Charge(node="Conv 'c'", layout="NHWC", bytes=7, cost=8),)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, None),
        ({"account": None}, "cost-accounting"),
        ({"account": account(100, operators=Entry(count=1, bytes=7, cost=7))}, "cost-accounting"),
        ({"account": account(100, operators=DEAR), "cost": 107, "bound": 107, "charges": CHARGES}, None),
        ({"account": account(100, operators=DEAR), "cost": 107, "bound": 107}, "cost-accounting"),
        ({"account": account(100, operators=FEW), "cost": 107, "bound": 107, "charges": CHARGES}, "cost-accounting"),
        ({"account": account(100, operators=DEAR), "cost": 107, "bound": 107, "charges": DEARER}, "cost-accounting"),
        ({"charges": CHARGES}, "cost-accounting"),
        ({"account": account(0, reorders=Entry(count=1, bytes=100, cost=100))}, "cost-accounting"),
        ({"account": account(100, transfers=Entry(count=1, bytes=8)), "cost": 100}, "cost-accounting"),
        ({"account": account(100, transfers=Entry(count=1))}, "cost-accounting"),
        ({"account": account(100, pads=Entry(count=1))}, "cost-accounting"),
        ({"conversions": (conversion(120),)}, "cost-accounting"),
        ({"conversions": (conversion(40), conversion(40))}, "cost-accounting"),
        ({"conversions": (conversion(8, "folded"),)}, "cost-accounting"),
        ({"conversions": (conversion(80, "reorder"), conversion(80, "pad"))}, "cost-accounting"),
        ({"bound": 99}, "status"),
        ({"bound": 101, "status": "feasible"}, "status"),
        ({"bound": None}, "status"),
        ({"cost": None, "bound": None, "account": None}, "status"),
        ({"bound": 50, "status": "feasible"}, None),
        ({"bound": 50, "status": "feasible", "gap": 0.1}, "status"),
    ],
)
def test_a_report_must_add_up(fields: dict[str, object], rule: str | None) -> None:
    found = {finding.rule for finding in check_report(report(**fields), None, None, None, frozenset())}
    assert found == ({rule} if rule else set())


def test_a_report_is_checked_against_the_models_it_speaks_of() -> None:
    assert "cost-accounting" in rules(verify(legal(), "nhwc", report=report()))


def test_the_verifier_imports_no_stage_that_it_verifies() -> None:
    others = ["candidates", "formulate", "solve", "rewrite", "pipeline"]
    program = f"import sys, relayout.verification; sys.exit(any('relayout.' + m in sys.modules for m in {others}))"
    assert run([sys.executable, "-c", program], check=False).returncode == 0


def test_bodies_of_branches_are_verified_too() -> None:
    model = model_of(
        """net (bool c, float[1,3,8,9] x, float[4,3,1,1] w) => (y) {
            y = If (c) <
                then_branch = a () => (float[1,4,8,9] u) { [inner] u = Conv (x, w) },
                else_branch = b () => (float[1,4,8,9] v) { [other] v = Conv (x, w) }
            > }""",
        {"w": kernel(4, 3, 1, 1)},
    )
    nodes = {finding.node for finding in verify(model, "nhwc", against=model).findings}
    assert nodes == {"inner", "other"}
    assert verify(model, "nchw", against=model).passed


def test_the_same_model_gives_the_same_verification() -> None:
    assert verify(raw(), "nhwc", against=legal()) == verify(raw(), "nhwc", against=legal())


UNSORTED = "net (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Relu (a)  a = Sigmoid (x) }"

SHADOWED = """net (float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y) { y = Conv (x, w) }
    <domain: "", opset_import: ["" : 17]> Conv (a, b) => (c) { c = Relu (a) }"""


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            UNSORTED,
            "the nodes are not in the order that ONNX demands, each behind those that it reads: they were sorted",
        ),
        (SHADOWED, "a function has the name of ONNX's Conv: it is used here, and not in all runtimes"),
    ],
)
def test_a_file_that_is_read_as_another_model_is_named(text: str, warning: str) -> None:
    """onnxruntime takes the Conv for ONNX's own, which `nhwc` does not accept on these data."""
    file = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]> {text}""")
    (finding,) = verify(file, "nhwc").findings
    assert (finding.rule, finding.severity, finding.message) == ("reading", "warning", warning)


def test_a_report_for_another_backend_is_named() -> None:
    model = model_of("net (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Relu (x) }")
    legal, report = legalize(model, "nhwc")
    assert verify(legal, "nhwc", report=report).findings == ()
    (found,) = verify(legal, "onnx", report=report).findings
    assert (found.rule, found.severity, found.expected, found.found) == ("status", "warning", "onnx", "nhwc")


def test_an_operator_whose_body_onnx_itself_refuses_is_no_contradiction() -> None:
    model = model_of("net (float[2,3,4,5] x) => (float[2,3,4,5] y) { y = MeanVarianceNormalization (x) }")
    assert verify(model, "onnx", against=model).passed


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("a = Relu (x) y = Relu (x) a = Neg (x)", "a name is used twice"),
        ("a = Squeeze (x) a = Softmax (a) y = Relu (a)", "a name is used twice"),
    ],
)
def test_an_invalid_graph_is_an_input_error_in_every_container(body: str, found: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (float[2,3] x) => (float[2,3] y) {{ {body} }}"""
    )
    for source in (model, model.SerializeToString()):
        with pytest.raises(InputError, match=found):
            verify(source, "onnx")


def test_a_model_that_cannot_be_read_is_not_run() -> None:
    """onnxruntime ends the process for a Sum with an operand left out."""
    original = model_of("net (float[2,3] x, float[2,3] z) => (float[2,3] y) { y = Sum (x, z) }")
    wrong = ir.to_proto(original)
    wrong.graph.node[0].input[1] = ""
    verification = verify(wrong, "onnx", against=original)
    assert verification.numeric is None
    assert ("shape", "error") in {(finding.rule, finding.severity) for finding in verification.findings}


def test_a_self_contradictory_model_is_checked_as_far_as_possible() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float x, float[1,4,8,8] z, float[4,4,1,1] k) => (float[1,4,8,8] c, y) <int64[1] o = {0}> {
            c = Conv (z, k)
            y = Squeeze (x, o)
        }"""
    )
    verification = verify(model, "nhwc")
    assert not verification.passed
    assert {finding.rule for finding in verification.findings} >= {"shape"}
