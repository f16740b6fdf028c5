"""The verifier accepts legal models and finds every violation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from subprocess import run
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, random_feeds

from relayout import legalize
from relayout.backend import Backend, load_backend
from relayout.errors import BackendError, InputError, UsageError
from relayout.layout.layout import Layout
from relayout.layout.relaid_constant import AbsentTensor
from relayout.model.io import read_model
from relayout.report.schema import Account, Charge, Conversion, Entry, Report, Totals, Verification
from relayout.verification.numeric.runtimes import Session
from relayout.verification.numeric.symbolic_sizes import plans
from relayout.verification.verifier import check_report, verify

HEADER = '<ir_version: 10, opset_import: ["" : 20, "relayout" : 1, "mine" : 1]>'

RAW = """net (float[1,3,8,9] x, float[4,3,3,3] w) => (float[1,4,4,4] y) {
    [conv] a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    [relu] b = Relu (a)
    [pool] c = MaxPool <kernel_shape = [2,2], strides = [2,2]> (b)
    [soft] y = Softmax <axis = 1> (c) }"""

LEGAL = """net (float[1,3,8,9] x, float[3,3,3,4] w) => (float[1,4,4,4] y) {
    [to_nhwc] x_laid = Transpose <perm = [0,2,3,1]> (x)
    [conv] a = relayout.Conv <kernel_shape = [3,3], pads = [1,1,1,1],
                              data_layout = "NHWC", kernel_layout = "HWIO"> (x_laid, w)
    [relu] b = Relu (a)
    [pool] c = relayout.MaxPool <kernel_shape = [2,2], strides = [2,2], data_layout = "NHWC"> (b)
    [soft] d = Softmax <axis = 3> (c)
    [to_nchw] y = Transpose <perm = [0,3,1,2]> (d) }
<domain: "relayout", opset_import: ["" : 20]>
Conv <kernel_shape, pads, data_layout, kernel_layout> (X, W) => (Y) {
    Xn = Transpose <perm = [0,3,1,2]> (X)
    Wn = Transpose <perm = [3,2,0,1]> (W)
    Yn = Conv <kernel_shape: ints = @kernel_shape, pads: ints = @pads> (Xn, Wn)
    Y = Transpose <perm = [0,2,3,1]> (Yn) }
<domain: "relayout", opset_import: ["" : 20]>
MaxPool <kernel_shape, strides, data_layout> (X) => (Y) {
    Xn = Transpose <perm = [0,3,1,2]> (X)
    Yn = MaxPool <kernel_shape: ints = @kernel_shape, strides: ints = @strides> (Xn)
    Y = Transpose <perm = [0,2,3,1]> (Yn) }"""


def table_of(operator: str, layout: str) -> Backend:
    """A backend that requires this layout of the first operand of an operator, and nothing else."""
    return load_backend({"name": "drawn", "rule": [{"op": operator, "implementation": [{"data": layout, "cost": 0}]}]})


def model_of(text: str, weights: dict[str, np.ndarray] | None = None, *, opset: int = 20) -> ir.Model:
    """The model that `text` writes; weights are inputs in the text and become constants."""
    proto = onnx.parser.parse_model(f"{HEADER} {text}")
    proto.opset_import[0].version = opset
    for name, data in (weights or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
        (entry,) = [entry for entry in proto.graph.input if entry.name == name]
        proto.graph.input.remove(entry)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def kernel(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def raw() -> ir.Model:
    return model_of(RAW, {"w": kernel(4, 3, 3, 3)})


def legal() -> ir.Model:
    model = model_of(LEGAL, {"w": np.ascontiguousarray(kernel(4, 3, 3, 3).transpose(2, 3, 1, 0))})
    for name in ("x_laid", "a", "b", "c", "d"):
        annotate(model, name, layout="NHWC", order="0,2,3,1")
    return model


def value_of(model: ir.Model, name: str) -> ir.Value:
    made = [value for node in model.graph for value in node.outputs]
    return next(value for value in (*model.graph.inputs, *made) if value.name == name)


def node_of(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def annotate(model: ir.Model, name: str, **facts: str) -> None:
    value_of(model, name).metadata_props.update({f"relayout.{key}": text for key, text in facts.items()})


def rules(verification: Verification, severity: str = "error") -> set[str]:
    return {finding.rule for finding in verification.findings if finding.severity == severity}


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
        (lambda m: node_of(m, "to_nhwc").attributes.add(ir.AttrInt64s("perm", [0, 3, 2, 1])), "axis-mismatch"),
        (lambda m: node_of(m, "soft").attributes.add(ir.AttrInt64("axis", 2)), "axis-mismatch"),
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


@pytest.mark.parametrize("samples", [0, -1, 1.5, "2"])
def test_a_comparison_needs_a_sample(samples: Any) -> None:
    with pytest.raises(UsageError, match="samples"):
        verify(legal(), "nhwc", against=raw(), samples=samples)


def test_a_model_that_contradicts_itself_is_compared_with_the_original_as_far_as_it_goes() -> None:
    proto = ir.to_proto(legal())
    for node in proto.graph.node:
        if node.op_type == "Transpose":
            del node.input[:]
    verification = verify(proto, "nhwc", against=raw())
    assert not verification.passed


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


def test_a_model_that_takes_none_of_the_sizes_tried_says_how_to_set_them() -> None:
    net = Net()
    image, mask = net.input("image", (1, "past")), net.input("mask", (1, "total"))
    net.output(net.node("Concat", net.node("Concat", image, image, net.weight(1, 131), axis=1), mask, axis=0))
    model = net.model()
    verification = verify(model, "onnx", against=model)
    assert "--dim (options.dims) sets the sizes of past, total" in verification.findings[-1].message
    assert verify(model, "onnx", against=model, dims={"past": 6, "total": 143}).passed


def test_a_model_that_no_runtime_runs_passes_only_where_the_static_part_is_enough() -> None:
    model = model_of("net (float[2,3] x) => (float[2,3] y) { [odd] y = mine.Odd (x) }")
    verification = verify(model, "nhwc", against=model)
    assert not verification.passed
    assert rules(verification) == {"not-compared"}
    assert rules(verification, "note") == {"function-missing"}
    assert verification.numeric is not None
    assert verification.numeric.status == "skipped"
    verification = verify(model, "nhwc", against=model, static=True)
    assert verification.passed
    assert rules(verification, "note") == {"function-missing", "not-compared"}


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


def test_nodes_without_a_name_are_no_pair() -> None:
    original = model_of("net (float[4] x) => (float[4] y) { a = Relu (x)  n = Neg (x)  b = Relu (n)  y = Sub (a, b) }")
    model = model_of("net (float[4] x) => (float[4] y) { p = Relu (x)  q = Neg (x)  r = Relu (q)  y = Sub (p, r) }")
    assert verify(model, "onnx", against=original).findings == ()


def test_the_static_part_is_left_out_on_request() -> None:
    assert legalize(raw(), "nhwc", verify=False)[1].verification is None


def test_onnxruntime_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout.verification.verifier.find_spec", lambda name: None)
    model = model_of("net (float[2,3] x) => (float[2,3] y) { [odd] y = mine.Odd (x) }")
    (finding,) = (each for each in verify(model, "nhwc", against=model).findings if each.severity == "error")
    assert "pip install 'relayout[check]'" in finding.found


def test_a_comparison_without_evidence_is_reported() -> None:
    constant = model_of("net (float[2,3] x) => (float[2,3] y) { z = Sub (x, x)  y = Exp (z) }")
    verification = verify(constant, "onnx", against=constant)
    assert verification.passed
    assert rules(verification, "warning") == {"vacuous"}


def test_inner_values_are_compared_where_the_output_is_saturated() -> None:
    text = "net (float[2,3] x) => (float[2,3] y) {{ a = {} (x)  b = Relu (a)  c = Sub (b, b)  y = Exp (c) }}"
    verification = verify(model_of(text.format("Sin")), "onnx", against=model_of(text.format("Cos")))
    assert rules(verification) == {"numeric"}


def test_nan_at_the_same_index_is_equal_and_elsewhere_is_not() -> None:
    logarithm = model_of("net (float[4,5] x) => (float[4,5] y) { y = Log (x) }")
    assert verify(logarithm, "onnx", against=logarithm).passed
    other = model_of("net (float[4,5] x) => (float[4,5] y) { z = Abs (x)  y = Log (z) }")
    assert "numeric" in rules(verify(other, "onnx", against=logarithm))


def test_inputs_and_outputs_may_arrive_in_a_declared_order() -> None:
    original = model_of("net (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }")
    model = model_of("net (float[2,4,3] x) => (float[2,4,3] y) { y = Softmax <axis = 2> (x) }")
    assert rules(verify(model, "onnx", against=original)) == {"boundary"}
    annotate(model, "x", order="0,2,1")
    annotate(model, "y", order="0,2,1")
    assert verify(model, "onnx", against=original).passed


def test_symbolic_dims_and_integers_are_given_small_sizes() -> None:
    model = model_of(
        """net (int64[N,L] ids, float[10,6] table) => (y) {
            e = Gather (table, ids)
            y = Transpose <perm = [0,2,1]> (e) }"""
    )
    verification = verify(model, "onnx", against=model)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


def test_absent_weights_are_drawn_for_both_models_with_the_transform_that_was_noted() -> None:
    original, model = raw(), legal()
    original.graph.initializers["w"].const_value = AbsentTensor(ir.DataType.FLOAT, [4, 3, 3, 3], "w")
    moved = AbsentTensor(ir.DataType.FLOAT, [4, 3, 3, 3], "w").relaid([{"op": "transpose", "perm": [2, 3, 1, 0]}])
    model.graph.initializers["w"].const_value = moved
    verification = verify(model, "nhwc", against=original)
    assert verification.findings == ()
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


class Aligned(Backend):
    """Rows of data start at multiples of 32 bytes, and one operator wants a black box."""

    name = "aligned"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if node.op_type == "Relu":
            return "*[a=32]*"
        return "**[acme:x]" if node.op_type == "Exp" else super().nth_input_layout_requirements(node, n)


@pytest.mark.parametrize(("columns", "passed"), [(8, True), (6, False)])
def test_alignment_is_a_property_of_the_strides(columns: int, passed: bool) -> None:
    model = model_of(f"net (float[3,{columns}] x) => (float[3,{columns}] y) {{ [relu] y = Relu (x) }}")
    verification = verify(model, Aligned())
    assert verification.passed is passed
    assert [finding.expected for finding in verification.findings] == ([] if passed else ["*[a=32]*"])


def test_a_black_box_is_met_only_by_a_value_that_carries_it() -> None:
    model = model_of("net (float[3,8] x) => (float[3,8] y) { [exp] y = Exp (x) }")
    assert rules(verify(model, Aligned())) == {"layout-requirement"}
    annotate(model, "x", boundary_layout="**[acme:x]")
    assert verify(model, Aligned()).passed


def test_a_black_box_that_the_operator_above_does_not_state_is_found_with_that_operator() -> None:
    model = model_of("net (float[3,8] x) => (float[3,8] y) { a = Abs (x)  y = Exp (a) }")
    [finding] = verify(model, Aligned()).findings
    assert finding.expected == "**[acme:x]"
    assert finding.found is not None
    assert finding.found.endswith(", as the backend states no black box for the result of Abs")


class Failing(Backend):
    name = "failing"

    def is_satisfied_by(self, tensor: object, required: Layout, current: Layout | None) -> bool:
        raise ZeroDivisionError

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return "NCHW"


def test_a_backend_that_fails_is_named() -> None:
    with pytest.raises(BackendError, match="is_satisfied_by"):
        verify(model_of("net (float[1,2,3,4] x) => (float[1,2,3,4] y) { y = Relu (x) }"), Failing())


def test_names_travel_to_operators_that_have_none() -> None:
    assert rules(verify(legal(), "canonical")) == {"layout-requirement"}, "kernels are OHWI there"
    soft = [f for f in verify(legal(), "canonical").findings if f.node == "soft"]
    assert soft == []
    assert [f.found for f in verify(raw(), "canonical").findings if f.node == "soft"] == ["NCHW"]


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


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, None),
        ({"account": None}, "cost-accounting"),
        ({"account": account(100, operators=Entry(count=1, bytes=7, cost=7))}, "cost-accounting"),
        ({"account": account(100, operators=DEAR), "cost": 107, "bound": 107, "charges": CHARGES}, None),
        ({"account": account(100, operators=DEAR), "cost": 107, "bound": 107}, "cost-accounting"),
        ({"charges": CHARGES}, "cost-accounting"),
        ({"account": account(0, reorders=Entry(count=1, bytes=100, cost=100))}, "cost-accounting"),
        ({"account": account(100, transfers=Entry(count=1, bytes=8)), "cost": 100}, "cost-accounting"),
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


def test_the_reference_runs_what_onnxruntime_cannot() -> None:
    model = model_of("net (bfloat16[2,3] x) => (bfloat16[2,3] y) { z = Mul (x, x)  y = Add (z, x) }")
    verification = verify(model, "onnx", against=model)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.runtime == "onnx.reference"


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


def test_a_resize_of_rows_and_columns_is_in_the_alignments_of_its_layout() -> None:
    model = model_of(
        "net (float[1,3,5,5] x) => (float[1,3,10,10] y) <float[4] s = {1, 1, 2, 2}> { y = Resize (x, , s) }"
    )
    assert verify(model, table_of("Resize", "NC[a=20]HW"), static=True).passed
    (found,) = verify(model, table_of("Resize", "NC[a=64]HW"), static=True).findings
    assert (found.rule, found.expected) == ("layout-requirement", "NC[a=64]HW")


def test_a_resize_to_extents_of_the_run_is_not_in_another_layout() -> None:
    model = model_of(
        """net (float[1,3,height,width] x, float[4,3,1,1] w) => (float[1,4,rows,columns] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}> {
            c = Conv (x, w)
            extents = Shape (c)
            kept = Slice (extents, zero, two)
            places = Slice (extents, two, four)
            larger = Mul (places, two)
            sizes = Concat <axis = 0> (kept, larger)
            [resize] y = Resize <mode = "nearest"> (c, , , sizes)
        }""",
        {"w": kernel(4, 3, 1, 1)},
    )
    assert verify(model, table_of("Resize", "NCHW"), static=True).passed
    found = verify(model, table_of("Resize", "NHWC"), static=True).findings
    assert [(finding.rule, finding.node, finding.operand) for finding in found] == [("layout-requirement", "resize", 0)]


def test_the_same_model_gives_the_same_verification() -> None:
    assert verify(raw(), "nhwc", against=legal()) == verify(raw(), "nhwc", against=legal())


# Sound models that were taken for faulty ones


def test_a_number_is_fed_as_an_array_that_onnxruntime_takes() -> None:
    one, other = "then () => (float[2] t) { t = Neg (x) }", "other () => (float[2] o) { o = Abs (x) }"
    branches = f"<then_branch = {one}, else_branch = {other}>"
    model = model_of(f"net (bool c, float[2] x) => (float[2] y) {{ y = If (c) {branches} }}")
    verification = verify(model, "onnx", against=model)
    assert verification.numeric is not None
    assert verification.numeric.runtime == "onnxruntime"


@pytest.mark.parametrize("columns", ["4", "columns"])
def test_a_resize_of_channels_names_its_own_axes(columns: str) -> None:
    """The pool behind the Transpose reads the resized channels as columns."""
    model = model_of(
        f"""net (float[2,3,{columns}] x) => (float[2,o,6] y) <float[3] s = {{1, 2, 0.5}}> {{
            w = Relu (x)
            r = Resize <mode = "linear"> (w, , s)
            t = Transpose <perm = [0, 2, 1]> (r)
            y = MaxPool <kernel_shape = [1]> (t)
        }}"""
    )
    assert verify(model, table_of("Resize", "NCW"), static=True).passed
    # The source has a Transpose between the Relu, whose axes this counts, and the Resize.
    model.graph[0].outputs[0].metadata_props["relayout.order"] = "0,2,1"
    assert verify(model, table_of("Resize", "NCW"), static=True).passed
    # With these annotations, they are the columns of the source.
    for value in (model.graph[0].outputs[0], model.graph[1].outputs[0]):
        value.metadata_props["relayout.order"] = "0,2,1"
    assert verify(model, table_of("Resize", "NWC"), static=True).passed
    (found,) = verify(model, table_of("Resize", "NCW"), static=True).findings
    assert (found.rule, found.expected) == ("layout-requirement", "NCW")


def test_a_run_does_not_change_its_inputs() -> None:
    """onnxruntime writes over the running mean and variance where the BatchNormalization comes out of a function."""
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    vectors = [net.input(name, (3,)) for name in ("scale", "bias", "mean", "var")]
    for result in net.node("BatchNormalization", image, *vectors, results=3, training_mode=1):
        net.output(result)
    legal, _ = legalize(net.model(), "nhwc")
    session = Session(read_model(legal), "onnxruntime")
    feeds = random_feeds(net.model())
    kept = {name: array.copy() for name, array in feeds.items()}
    session.run(feeds)
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, kept[name])


@pytest.mark.parametrize("is_seeded", [False, True])
@pytest.mark.parametrize("operator", ["Bernoulli", "Dropout", "RandomNormalLike"])
def test_what_is_behind_unseeded_random_operators_is_compared_on_the_same_numbers(
    operator: str, is_seeded: bool
) -> None:
    """Two runs of the original itself give it differently."""
    net = Net()
    image = net.node("Sigmoid", net.input("x", (2, 3)))
    training = [net.constant(np.array(0.5, np.float32)), net.constant(np.array(True))] if operator == "Dropout" else []
    seed = {"seed": 1 if operator == "Dropout" else 1.0} if is_seeded else {}
    drawn = net.node("Neg", net.node(operator, image, *training, **seed))
    net.output(drawn)
    net.output(image)
    found = verify(net.model(), "onnx", against=net.model())
    assert found.numeric is not None
    assert [each.name for each in found.numeric.outputs] == [drawn, image]
    assert [(each.rule, each.severity, each.found) for each in found.findings] == (
        [] if is_seeded else [("random", "note", operator)]
    )


NOISY = """net (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z) {{
    r = {} (x)
    a = Add (x, r)
    t = Transpose <perm = [{}]> (a)
    y = Sigmoid (t)
    z = Relu (x) }}"""


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_a_fault_behind_numbers_drawn_without_a_seed_is_found(operator: str) -> None:
    original, model = (model_of(NOISY.format(operator, perm)) for perm in ("0,1,2,3", "0,1,3,2"))
    assert verify(original, "onnx", against=original).passed
    found = verify(model, "onnx", against=original)
    assert {each.node for each in found.findings if each.rule == "numeric"} == {"t", "y"}


def test_an_output_that_is_itself_drawn_without_a_seed_is_not_compared() -> None:
    model = model_of("net (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = RandomNormalLike (x)  z = Relu (x) }")
    found = verify(model, "onnx", against=model)
    assert found.numeric is not None
    assert [(each.name, each.reason) for each in found.numeric.not_compared] == [
        ("y", "it depends on numbers drawn without a seed")
    ]


def test_an_output_that_only_the_model_draws_is_an_error() -> None:
    text = """net (float[2,3] x) => (float[2,3] y, float[2,3] z) {{
        r = RandomNormalLike (x)
        z = Add (x, r)
        {} }}"""
    original, model = (model_of(text.format(y)) for y in ("y = Relu (x)", "s = RandomNormalLike (x)  y = Relu (s)"))
    found = verify(model, "onnx", against=original)
    assert not found.passed
    assert found.numeric is not None
    assert [(each.name, each.reason) for each in found.numeric.not_compared] == [
        ("y", "it depends on RandomNormalLike")
    ]


def test_numbers_that_no_others_may_replace_stay_as_they_are_drawn() -> None:
    """Others than those between 0 and 1 lead to indices of no row."""
    model = model_of(
        """net (float[40] x, float[3,6] w) => (float[40,6] y, float[40] z) {
            u = RandomUniformLike (x)
            three = Constant <value_float = 3.0> ()
            n = Mul (u, three)
            k = Cast <to = 7> (n)
            y = Gather (w, k)
            z = Relu (x) }"""
    )
    found = verify(model, "onnx", against=model)
    assert found.numeric is not None
    assert [each.name for each in found.numeric.outputs] == ["z"]
    assert [each.name for each in found.numeric.not_compared] == ["y"]


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("float", "y = Clip (NAME, low, high)"),
        ("float", "y = Greater (NAME, high)"),
        ("int64", "y = Greater (NAME, high)"),
    ],
    ids=["saturated", "a threshold", "a threshold of integers"],
)
def test_inputs_are_drawn_that_change_an_output_which_others_leave_as_it_is(kind: str, operator: str) -> None:
    text = f"""net ({kind}[4,8,8] x, {kind}[4,8,8] v) => (y, w) {{
        low = Constant <value = {kind}[1] {{100}}> ()
        high = Constant <value = {kind}[1] {{200}}> ()
        NAME = Transpose <perm = [PERM]> (x)
        {operator}
        w = Neg (v) }}"""
    # Under one name the two would be compared themselves.
    original, model = (
        model_of(text.replace("NAME", name).replace("PERM", perm)) for name, perm in (("s", "0,1,2"), ("t", "0,2,1"))
    )
    assert verify(original, "onnx", against=original).passed
    found = verify(model, "onnx", against=original)
    assert {each.node for each in found.findings if each.rule == "numeric"} == {"y"}


def test_an_output_that_no_input_was_seen_to_change_is_named() -> None:
    model = model_of(
        """net (float[4,8] x, float[n] v) => (y, w, z, s, k) {
            r = Relu (x)
            k = NonZero (r)
            far = Constant <value_float = 1e30> ()
            two = Constant <value_float = 2.0> ()
            n = Shape (v)
            y = Greater (x, far)
            w = Neg (x)
            z = Mul (two, far)
            s = ConstantOfShape (n) }"""
    )
    found = verify(model, "onnx", against=model)
    assert [(each.rule, each.severity, each.found) for each in found.findings] == [("vacuous", "warning", "y")]


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


@pytest.mark.parametrize(
    ("backend", "operators"),
    [("nhwc", {"BatchNormalization, 2 nodes"}), ("canonical", {"BatchNormalization, 2 nodes"}), ("onnx", set())],
)
def test_operands_of_unknown_rank_are_named_where_a_backend_may_require_a_layout(
    backend: str, operators: set[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20, "com.acme" : 1]>
        net (float[1,4,8,8] x, float[4] s) => (float y, float z) {
            a = com.acme.Unknown (x)
            b = Relu (a)
            y = BatchNormalization (b, s, s, s, s)
            z = BatchNormalization (a, s, s, s, s) }"""
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    warned = [each for each in verify(model, backend).findings if each.severity == "warning"]
    assert {each.found for each in warned} == operators
    assert all(each.rule == "layout-requirement" and "not checked" in each.message for each in warned)


def test_text_made_of_other_numbers_is_another_text() -> None:
    text = "net (float[4,8,8] x) => (string[4,8,8] y) {{ {0} = Transpose <perm = [{1}]> (x)  y = Cast <to = 8> ({0}) }}"
    original, model = model_of(text.format("s", "0,1,2")), model_of(text.format("t", "0,2,1"))
    assert verify(original, "onnx", against=original).passed
    assert not verify(model, "onnx", against=original).passed


def test_a_report_for_another_backend_is_named() -> None:
    model = model_of("net (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Relu (x) }")
    legal, report = legalize(model, "nhwc")
    assert verify(legal, "nhwc", report=report).findings == ()
    (found,) = verify(legal, "onnx", report=report).findings
    assert (found.rule, found.severity, found.expected, found.found) == ("status", "warning", "onnx", "nhwc")


BESIDE = """net ({kind}[1,4,8,8] x) => ({kind}[1,8,8,8] y) {{
    by = Constant <value = {kind}[1] {{640}}> ()
    large = Mul (x, by)
    small = Sigmoid (x)
    {turn}
    y = Concat <axis = 1> (large, {name}) }}"""


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_large_channels_do_not_hide_a_fault_in_small_ones(kind: str) -> None:
    original = model_of(BESIDE.format(kind=kind, turn="", name="small"))
    turn = "turned = Transpose <perm = [0,1,3,2]> (small)"
    model = model_of(BESIDE.format(kind=kind, turn=turn, name="turned"))
    assert verify(original, "onnx", against=original).passed
    assert not verify(model, "onnx", against=original).passed


def test_an_operator_whose_body_onnx_itself_refuses_is_no_contradiction() -> None:
    model = model_of("net (float[2,3,4,5] x) => (float[2,3,4,5] y) { y = MeanVarianceNormalization (x) }")
    assert verify(model, "onnx", against=model).passed


def test_before_opset_13_softmax_works_on_all_axes_from_its_own_on() -> None:
    text = "net (float[1,2,6,1] x, float[3,2,1,1] w) => (y) {{ c = Conv (x, w)  t = Transpose <perm = {}> (c)  {} }}"
    whole = "[s] y = LogSoftmax <axis = 1> (t)"
    parts = "[s] l = LogSoftmax <axis = {}> (t)  y = Transpose <perm = [0,2,1,3]> (l)"
    original = model_of(text.format("[0,2,3,1]", whole), opset=9)
    for axis, passed in ((2, True), (3, False)):
        model = model_of(text.format("[0,3,2,1]", parts.format(axis)), opset=9)
        annotate(model, "l", order="0,2,1,3")
        assert verify(model, "onnx", against=original).passed == passed


def test_the_name_of_an_axis_ends_where_it_is_reduced_to_extent_1() -> None:
    model = model_of(
        "net (float[5,4,6,4] x) => (y) { r = ReduceL1 <axes = [3,1]> (x)  y = LRN <size = 3> (r) }", opset=11
    )
    annotate(model, "x", order="0,3,2,1")
    model.graph.inputs[0].metadata_props["relayout.layout"] = "NWHC"
    assert verify(model, "onnx").passed


def test_the_name_of_an_axis_ends_where_it_is_pooled_to_extent_1() -> None:
    """Of the picture's own axes it says nothing that its average, read turned, has channels second."""
    model = model_of(
        """net (float[3,4,2,5] x, float[1] w) => (s, y) {
            s = Softmax (x)
            p = GlobalAveragePool (x)
            t = Transpose <perm = [0,2,3,1]> (p)
            y = BatchNormalization (t, w, w, w, w)
        }"""
    )
    annotate(model, "s", order="0,2,3,1", layout="NHWC")
    model.graph.inputs[0].metadata_props["relayout.layout"] = "NHWC"
    assert verify(model, "onnx").passed


def test_a_pool_of_the_whole_picture_does_not_say_which_axis_is_which() -> None:
    text = """net (float[3,4,2,5] x) => (y) {{
        r = Relu (x)
        p = GlobalMaxPool (r)
        t = Transpose <perm = [1,0,2,3]> (p)
        y = AveragePool <kernel_shape = [1, 1]> ({})
    }}"""
    for layout, read, passed in (("CNWH", "t", True), ("NCWH", "p", True), ("NHCW", "p", False), ("CNWH", "p", True)):
        model = model_of(text.format(read))
        annotate(model, "r", layout=layout)
        assert verify(model, "onnx").passed == passed, (layout, read)


def test_sizes_that_a_model_mentions_are_not_tried_where_they_would_fill_the_memory() -> None:
    net = Net()
    net.output(net.node("Relu", net.input("x", ("a", "b", "c", "d"))))
    net.output(net.node("Relu", net.input("y", (4096, 3))))
    model = read_model(net.model())
    extents = [plan.extents for plan in plans(model, None)]
    assert dict.fromkeys("abcd", 3) in extents
    assert all(np.prod(list(each.values())) <= 1 << 20 for each in extents)


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
