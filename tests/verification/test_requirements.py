"""Operands in the layouts that a backend requires, by the layouts that values have."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from verified_models import annotate, kernel, legal, model_of, raw, rules

from relayout.backend import Backend, load_backend
from relayout.layout.layout import Layout
from relayout.verification.verifier import verify


def table_of(operator: str, layout: str) -> Backend:
    """A backend that requires this layout of the first operand of an operator, and nothing else."""
    return load_backend({"name": "drawn", "rule": [{"op": operator, "implementation": [{"data": layout, "cost": 0}]}]})


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


def test_names_travel_to_operators_that_have_none() -> None:
    assert rules(verify(legal(), "canonical")) == {"layout-requirement"}, "kernels are OHWI there"
    soft = [f for f in verify(legal(), "canonical").findings if f.node == "soft"]
    assert soft == []
    assert [f.found for f in verify(raw(), "canonical").findings if f.node == "soft"] == ["NCHW"]


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
