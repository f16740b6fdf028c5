"""Glow's tensor layouts: its worked table, the rule of the context, and the solver that its document hopes for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers

import relayout
from relayout import Backend, Implementation, InfeasibleError, Layout, Report
from relayout.answers import ask
from relayout.model_io import to_json
from relayout_backends.canonical import Canonical

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def legalized(net: Net, backend: Any, **options: Any) -> tuple[onnx.ModelProto, Report]:
    """The legal model, proved optimal, without a finding of the verifier."""
    legal, report = relayout.legalize(net.model(), backend, check=True, **options)
    assert report.status == "optimal"
    assert report.verification is not None
    assert report.verification.findings == ()
    return legal, report


def operators(model: onnx.ModelProto) -> list[str]:
    return [f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.node]


# The worked table

ROWS = {
    # Glow's node: (an ONNX node, what canonical answers, what opencl answers)
    "Convolution": (
        "(float[1,8,9,9] x, float[4,8,2,2] w, float[4] b) => (float[1,4,8,8] y) { y = Conv (x, w, b) }",
        "NHWC OHWI * -> NHWC",
        "NCHW OIHW * -> NCHW",
    ),
    "MaxPool": (
        """(float[1,8,9,9] x) => (float[1,8,8,8] y, int64[1,8,8,8] i) {
            y, i = MaxPool <kernel_shape = [2, 2]> (x) }""",
        "NHWC -> NHWC NHWC",
        "NCHW -> NCHW NCHW",
    ),
    "AvgPool": (
        "(float[1,8,9,9] x) => (float[1,8,8,8] y) { y = AveragePool <kernel_shape = [2, 2]> (x) }",
        "NHWC -> NHWC",
        "NCHW -> NCHW",
    ),
    "ConvTranspose": (
        "(float[1,8,9,9] x, float[8,4,2,2] w) => (float[1,4,10,10] y) { y = ConvTranspose (x, w) }",
        "NHWC OHWI -> NHWC",
        "NHWC OHWI -> NHWC",
    ),
    "ResizeNearest": (
        "(float[1,8,9,9] x, float[4] s) => (float[1,8,18,18] y) { y = Resize (x, , s) }",
        "NHWC  * -> NHWC",
        "NHWC  * -> NHWC",
    ),
    "LocalResponseNormalization": (
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = LRN <size = 3> (x) }",
        "NHWC -> NHWC",
        "NHWC -> NHWC",
    ),
    "SoftMax": ("(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = Softmax (x) }", "NHWC -> NHWC", "NHWC -> NHWC"),
    "SoftMax of a matrix": ("(float[8,9] x) => (float[8,9] y) { y = Softmax (x) }", "** -> **", "** -> **"),
    "Relu": ("(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = Relu (x) }", "**** -> ****", "**** -> ****"),
    "Add": (
        "(float[1,8,9,9] x, float[1,8,9,9] z) => (float[1,8,9,9] y) { y = Add (x, z) }",
        "**** **** -> ****",
        "**** **** -> ****",
    ),
    "Concat": (
        "(float[1,8,9,9] x, float[1,8,9,9] z) => (float[1,16,9,9] y) { y = Concat <axis = 1> (x, z) }",
        "**** **** -> ****",
        "**** **** -> ****",
    ),
    "MatMul": (
        "(float[1,8,9,9] x, float[9,5] z) => (float[1,8,9,5] y) { y = MatMul (x, z) }",
        "**** ** -> ****",
        "**** ** -> ****",
    ),
    "Gemm": (
        "(float[3,4] x, float[4,5] z) => (float[3,5] y) { y = Gemm (x, z) }",
        "** ** -> **",
        "** ** -> **",
    ),
    "Quantize": (
        "(float[1,8,9,9] x, float s, uint8 z) => (uint8[1,8,9,9] y) { y = QuantizeLinear (x, s, z) }",
        "****   -> ****",
        "****   -> ****",
    ),
    "ConvertTo": (
        "(float[1,8,9,9] x) => (float16[1,8,9,9] y) { y = Cast <to = 10> (x) }",
        "**** -> ****",
        "**** -> ****",
    ),
}


def node(text: str) -> ir.Node:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}')).graph[0]


def answer(backend: Backend, asked: ir.Node) -> str:
    (only,) = ask(backend, asked)
    return f"{' '.join(map(str, only.inputs))} -> {' '.join(map(str, only.results))}"


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("glow", ROWS)
def test_a_node_is_answered_as_in_glows_table(glow: str, backend: str) -> None:
    text, *answers = ROWS[glow]
    assert answer(relayout.load_backend(backend), node(text)) == answers[backend == "opencl"]


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


def test_a_custom_backend_accepts_what_canonical_does_not() -> None:
    assert relayout.verify(pooled().model(), backend=Custom).passed
    assert not relayout.verify(pooled().model(), backend="canonical").passed
    assert legalized(pooled(), Custom)[1].after.transposes == 0
    assert legalized(pooled(), "canonical")[1].after.transposes == 2


def test_a_backend_that_delegates_is_asked_about_what_the_delegate_looks_up() -> None:
    asked = node(ROWS["SoftMax"][0])
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
def test_an_annotation_in_graph_json_says_how_the_placeholder_lies(layout: str, backend: str) -> None:
    graph = to_json(relayout.read_model(image_net().model()))
    graph["inputs"][0]["layout"] = layout
    legal, report = relayout.legalize(graph, backend)
    assert legal["inputs"][0]["shape"] == [1, *((8, 6, 3) if layout == "NHWC" else (3, 8, 6))]
    transposed_in = (layout == "NHWC") != (backend == "canonical")
    transposed_out = backend == "canonical"
    assert report.after.transposes == transposed_in + transposed_out


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


# What Glow's sinking of transposes leaves


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
    "layout", ["N[a=1024]CHW", "NCHW[a=8]", "NC[a=128]HW", "N[acme:<bla>]CHW", "N[a=32][acme:<bla>]CHW", "NCHW[x:]"]
)
def test_a_requirement_that_nothing_meets_is_never_ignored(layout: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        relayout.legalize(pooled().model(), asking_for(layout))
    assert f"input 0 requires {layout}" in str(caught.value)


def test_glows_own_example_of_a_layout_is_kept_to_the_letter() -> None:
    text = "N[a=32][namespace_for_unsupported:<bla>]HWC"
    layout = Layout.parse(text)
    assert str(layout) == text
    assert (layout.names, layout.alignment(0)) == ("NHWC", 32)
    assert layout.attribute(0, "namespace_for_unsupported") == "<bla>"
