"""Glow's tensor layouts: the rule of the context, and the solver that its document hopes for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from backend_tables import answer, node
from graphs import Net, assert_same_numbers
from legalization_checks import TO_NCHW, TO_NHWC, checked, operators

import relayout
from relayout import Backend, Implementation, InfeasibleError, Layout, Report
from relayout.model.io import to_json
from relayout_backends.canonical import Canonical


def legalized(net: Net, backend: Any, **options: Any) -> tuple[onnx.ModelProto, Report]:
    """The legal model, proved optimal, without a finding of the verifier."""
    return checked(net.model(), backend, **options)


# The context: Glow's test of a custom backend, whose MaxPool is NCHW and which is canonical else


class Custom(Backend):
    """MaxPool on NCHW; everything else is canonical."""

    name = "custom"

    def __init__(self, context: Backend | None = None) -> None:
        super().__init__(context)
        self._canonical = Canonical(context=self.context)

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        own = node.op_type == "MaxPool"
        return super().implementations(node) if own else self._canonical.implementations(node)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return "NCHW" if node.op_type == "MaxPool" else self._canonical.nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return "NCHW" if node.op_type == "MaxPool" else self._canonical.nth_result_layout_requirements(node, n)


class Widest(Custom):
    """Custom, whose tensors of rank 4 are HWCN where nothing else is known of them."""

    name = "widest"

    def default_nd_layout(self, rank: int) -> Layout:
        return Layout.parse("HWCN") if rank == 4 else super().default_nd_layout(rank)


def pooled() -> Net:
    net = Net()
    net.output(net.node("MaxPool", net.input("x", (1, 3, 8, 6)), kernel_shape=[2, 2]))
    return net


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_softmax_of_a_matrix_whose_columns_are_not_last_is_written_out(
    axis: int, operator: str, backend: str
) -> None:
    net = Net(opset=11)
    net.output(net.node(operator, net.conv(net.input("x", (2, 3, 4, 5)), 3, 4), axis=axis))
    model = net.model()
    legal, _ = checked(model, backend)
    assert_same_numbers(model, legal)
    assert (operator in operators(legal)) == (axis == 1)


def test_a_custom_backend_accepts_what_canonical_does_not() -> None:
    assert relayout.verify(pooled().model(), backend=Custom).passed
    assert not relayout.verify(pooled().model(), backend="canonical").passed
    assert legalized(pooled(), Custom)[1].after.transposes == 0
    assert legalized(pooled(), "canonical")[1].after.transposes == 2


def test_a_backend_that_delegates_is_asked_about_what_the_delegate_looks_up() -> None:
    asked = node("(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = Softmax (x) }")
    assert answer(Custom(), asked) == "NHWC -> NHWC"
    assert answer(Widest(), asked) == "HWCN -> HWCN"


def test_layouts_mix_within_one_network() -> None:
    net = Net()
    value = net.node("MaxPool", net.conv(net.input("x", (1, 3, 8, 6)), 3, 4), kernel_shape=[2, 2])
    net.output(net.conv(value, 4, 4))
    assert legalized(net, "canonical")[1].after.transposes == 2
    assert legalized(net, "opencl")[1].after.transposes == 0
    legal, report = legalized(net, Custom)
    assert report.after.transposes == 4
    assert "MaxPool" in operators(legal)


# "Introduce a Solver": annotate the placeholder, and let the solver transpose it


def image_net() -> Net:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input("x", (1, 3, 8, 6)), 3, 4)))
    return net


def test_a_placeholder_is_transposed_to_what_its_reader_wants() -> None:
    legal, report = legalized(image_net(), "canonical")
    assert report.after.transposes == 2
    assert next(c.value for c in report.conversions) == "x"
    assert operators(legal)[:2] == ["Transpose", "relayout::Conv"]


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_an_annotation_in_graph_json_is_the_layout_of_the_placeholder(layout: str, backend: str) -> None:
    graph = to_json(relayout.read_model(image_net().model()))
    graph["inputs"][0]["layout"] = layout
    legal, report = relayout.legalize(graph, backend)
    assert legal["inputs"][0]["shape"] == [1, *((8, 6, 3) if layout == "NHWC" else (3, 8, 6))]
    transposed_in = (layout == "NHWC") != (backend == "canonical")
    transposed_out = backend == "canonical"
    assert report.after.transposes == transposed_in + transposed_out


@pytest.mark.parametrize("wildcard", ["*", "****", "any"])
def test_any_layout_leaves_a_placeholder_to_the_solver(wildcard: str) -> None:
    """Glow's ANY_LAYOUT is one star, whatever the rank; and two stars mean no more."""
    graph = to_json(relayout.read_model(image_net().model()))
    for value in (graph["inputs"][0], graph["outputs"][0]):
        value["layout"] = wildcard
    legal, report = relayout.legalize(graph, "canonical", check=True)
    assert report.verification is not None
    assert (report.after.transposes, report.verification.findings) == (0, ())
    # The solver's choice is stated from now on.
    assert [value["layout"] for value in (legal["inputs"][0], legal["outputs"][0])] == ["NHWC", "NHWC"]
    assert legal["inputs"][0]["shape"] == [1, 8, 6, 3]
    assert relayout.legalize(legal, "canonical")[0] == legal


def test_an_output_is_annotated_like_an_input() -> None:
    graph = to_json(relayout.read_model(image_net().model()))
    graph["outputs"][0]["layout"] = "NHWC"
    legal, report = relayout.legalize(graph, "canonical")
    assert (report.after.transposes, legal["outputs"][0]["shape"]) == (1, [1, 8, 6, 4])
    legal, report = relayout.legalize(graph, "canonical", output_layouts={graph["outputs"][0]["name"]: "NCHW"})
    assert (report.after.transposes, legal["outputs"][0]["shape"]) == (2, [1, 4, 8, 6])


def test_a_star_in_an_annotation_stands_for_the_remaining_axes() -> None:
    _, report = legalized(image_net(), "canonical", input_layouts={"x": "N**C"})
    assert report.after.transposes == 1


# The strides of float[1,8,6,3] in bytes are 576, 72, 12, 4.
@pytest.mark.parametrize(("layout", "met"), [("N[a=64]HWC", True), ("NH[a=8]WC", True), ("NH[a=16]WC", False)])
def test_an_annotated_alignment_is_checked_in_the_order_that_it_is_annotated_in(layout: str, met: bool) -> None:
    if met:
        assert legalized(image_net(), "canonical", input_layouts={"x": layout})[1].after.transposes == 1
        return
    with pytest.raises(InfeasibleError, match="requires NH") as caught:
        relayout.legalize(image_net().model(), "canonical", input_layouts={"x": layout})
    assert caught.value.relaxation == ("it were NHWC (options.input_layouts[x]=NHWC)",)


# "Remove shuffle arrays": a Transpose says its layouts, and the permutation is deduced


@pytest.mark.parametrize("domain", ["", "relayout"])
def test_a_shuffle_is_deduced_from_layouts(domain: str) -> None:
    net = Net()
    value = net.input("x", (1, 8, 6, 3))
    value = net.node("Transpose", value, domain=domain, source_layout="NHWC", target_layout="NCHW")
    net.nodes[-1].output[0] = value
    net.output(net.conv(value, 3, 4))
    model = onnx.helper.make_model(
        onnx.helper.make_graph(net.nodes, "net", net.inputs, net.outputs, net.constants),
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("relayout", 1)],
        ir_version=10,
    )
    written = net_with_shuffle().model()
    legal, report = relayout.legalize(model, "onnx")
    assert report.before.transposes == 1
    assert_same_numbers(written, legal)
    assert relayout.legalize(model, "canonical")[1].after == relayout.legalize(written, "canonical")[1].after


def net_with_shuffle() -> Net:
    net = Net()
    net.output(net.conv(net.transpose(net.input("x", (1, 8, 6, 3)), *TO_NCHW), 3, 4))
    return net


@pytest.mark.parametrize(
    ("annotated", "transposes"),
    [
        ({"a": "NHWC"}, 1),
        ({"a": "NHWC", "b": "NHWC"}, 0),
        ({"a": "NCHW", "b": "NCHW"}, 1),
        ({"a": "any", "b": "any"}, 0),
    ],
)
def test_each_placeholder_has_a_layout_of_its_own(annotated: dict[str, str], transposes: int) -> None:
    net = Net()
    value = net.conv(net.node("Add", net.input("a", (1, 3, 8, 6)), net.input("b", (1, 3, 8, 6))), 3, 4)
    net.output(value)
    _, report = relayout.legalize(net.model(), "canonical", input_layouts=annotated, output_layouts={value: "NHWC"})
    assert report.after.transposes == transposes


def test_a_layout_passes_through_operators_that_take_any() -> None:
    """Glow's verifier forgets it there, and lets NCHW data through a Relu into an NHWC convolution."""
    net = Net()
    net.output(net.conv(net.node("Relu", net.input("x", (1, 3, 8, 6))), 3, 4))
    found = relayout.verify(net.model(), backend="canonical").findings
    assert ("layout-requirement", "NHWC", "NCHW") in {(f.rule, f.expected, f.found) for f in found}
    assert legalized(net, "canonical")[1].after.transposes == 2


def test_a_requirement_takes_the_place_of_a_node_of_the_backends_own() -> None:
    """Glow's OpenCL has a convolution of its own between transposes of its own; here one line of a table says it."""
    net = Net()
    net.output(net.conv(net.node("Relu", net.conv(net.input("x", (1, 3, 8, 6)), 3, 4)), 4, 4))
    legal, report = legalized(net, {"name": "mine", "rule": [{"op": "Conv", "data": "NHWC", "kernel": "OHWI"}]})
    assert report.after.transposes == 2
    assert operators(legal) == ["Transpose", "relayout::Conv", "Relu", "relayout::Conv", "Transpose"]
    assert_same_numbers(net.model(), legal)


# The transposes that Glow's sinking leaves


def test_transposes_that_follow_each_other_become_one_or_none() -> None:
    for second, left in (((1, 2, 0, 3), 0), ((2, 0, 1, 3), 1)):
        net = Net()
        value = net.node("Relu", net.transpose(net.input("x", (2, 3, 4, 5)), 2, 0, 1, 3))
        net.output(net.transpose(value, *second))
        assert legalized(net, "onnx")[1].after.transposes == left


THROUGH: dict[str, Callable[[Net, str], str]] = {
    "ConvertTo": lambda n, v: n.node("Cast", n.node("Cast", v, to=onnx.TensorProto.DOUBLE), to=onnx.TensorProto.FLOAT),
    "Select": lambda n, v: n.node("Where", n.node("Less", v, n.constant(np.float32(0))), v, n.node("Abs", v)),
    "Slice": lambda n, v: n.node("Slice", v, n.constant([1]), n.constant([3]), n.constant([1])),
    "Exp and Sqrt": lambda n, v: n.node("Sqrt", n.node("Exp", v)),
    "BatchedReduceMean": lambda n, v: n.node("Sub", v, n.node("ReduceMean", v, axes=[3])),
    "SoftMax": lambda n, v: n.node("Softmax", v, axis=3),
    "Resize": lambda n, v: n.node("Resize", v, "", n.constant(np.array([1, 2, 2, 1], np.float32)), mode="nearest"),
    "Concat with a constant": lambda n, v: n.node("Concat", v, n.weight(2, 4, 5, 2), axis=3),
    "TopK": lambda n, v: n.node("TopK", v, n.constant([2]), results=2, axis=3)[0],
    "Gather": lambda n, v: n.node("Gather", v, n.constant([2, 0]), axis=3),
    "Broadcast": lambda n, v: n.node("Expand", n.node("ReduceMax", v, axes=[1]), n.constant([2, 4, 5, 3])),
    "a vector that arrives at run time": lambda n, v: n.node("Mul", v, n.input("scale", (3,))),
}


@pytest.mark.parametrize("what", THROUGH)
def test_opposite_transposes_cancel_through(what: str) -> None:
    net = Net()
    value = THROUGH[what](net, net.transpose(net.input("x", (2, 3, 4, 5)), *TO_NHWC))
    net.output(net.transpose(value, *TO_NCHW))
    assert legalized(net, "onnx")[1].after.transposes == 0


def test_another_reader_of_a_transpose_costs_no_second_one() -> None:
    net = Net()
    value = net.transpose(net.input("x", (2, 3, 4, 5)), *TO_NHWC)
    net.output(value)
    net.output(net.transpose(net.node("Relu", value), *TO_NCHW))
    assert legalized(net, "onnx")[1].after.transposes == 1


# Alignment and black boxes


def asking_for(layout: str) -> dict[str, Any]:
    return {"name": "asking", "rule": [{"op": "MaxPool", "inputs": [layout], "results": ["NCHW"]}]}


# The strides of float[1,3,8,6] in bytes are 576, 192, 24, 4.
@pytest.mark.parametrize("layout", ["N[a=576]CHW", "N[a=288]CHW", "NC[a=64]HW", "NCH[a=24]W", "NCHW[a=4]", "NC*W"])
def test_an_alignment_that_the_strides_have_is_met(layout: str) -> None:
    legal, report = relayout.legalize(pooled().model(), asking_for(layout))
    assert report.after.transposes == 0
    assert operators(legal) == ["MaxPool"]


@pytest.mark.parametrize(
    "layout", ["NCHW[a=8]", "NC[a=128]HW", "N[acme:<bla>]CHW", "N[a=32][acme:<bla>]CHW", "NCHW[x:]"]
)
def test_an_unsatisfiable_requirement_is_never_ignored(layout: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        relayout.legalize(pooled().model(), asking_for(layout))
    assert f"input 0 requires {layout}" in str(caught.value)


def test_a_missing_alignment_is_provided_by_padding_if_the_operator_allows() -> None:
    """A stride of 1024 bytes takes 5 1/3 channels of 192 bytes: 16 channels are the first that are a multiple of it."""
    model = pooled().model()
    legal, report = relayout.legalize(model, asking_for("N[a=1024]CHW"))
    assert report.status == "optimal"
    assert "Pad" in operators(legal)
    read = next(node.input[0] for node in legal.graph.node if node.op_type == "MaxPool")
    (padded,) = [value for value in legal.graph.value_info if value.name == read]
    extents = [dim.dim_value for dim in padded.type.tensor_type.shape.dim]
    assert extents[1] * extents[2] * extents[3] * 4 % 1024 == 0
    assert_same_numbers(model, legal)


def test_glows_own_example_of_a_layout_is_kept_verbatim() -> None:
    text = "N[a=32][namespace_for_unsupported:<bla>]HWC"
    layout = Layout.parse(text)
    assert str(layout) == text
    assert (layout.names, layout.alignment(0)) == ("NHWC", 32)
    assert layout.attribute(0, "namespace_for_unsupported") == "<bla>"
