"""Each operator, and each result of a graph, is made from the values that the original makes it from."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from onnx import GraphProto, ModelProto, helper

from relayout import legalize
from relayout.verification import verify

# The difference that a round trip through float16 makes is within what a run tolerates, at some of these values.
ROUNDED = """<ir_version: 9, opset_import: ["" : 18]>
net (float[2,4,6,6] x, float[4,4,3,3] w) => (float[2,4,6,6] y, float[2,4,6,6] z) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    b = Sigmoid (a)
    h = Cast <to = 10> (b)
    f = Cast <to = 1> (h)
    c = Mul (f, f)
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (c, w)
    e = Tanh (a)
    g = Cast <to = 10> (e)
    z = Cast <to = 1> (g) }"""
BRANCHES = """<ir_version: 9, opset_import: ["" : 18]>
net (float[2,4,6,6] x, float[4,4,3,3] w, bool c) => (float[2,4,6,6] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    i = If (c) <
        then_branch = then () => (float[2,4,6,6] t) { u = Tanh (a)  g = Cast <to = 10> (u)  t = Cast <to = 1> (g) },
        else_branch = other () => (float[2,4,6,6] e) { e = Sigmoid (a) }>
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (i, w) }"""


def _model(text: str, *, named: bool) -> ModelProto:
    model = onnx.parser.parse_model(text)
    for number, node in enumerate(node for graph in _graphs(model) for node in graph.node):
        node.name = f"n{number}" if named else ""
    return model


def _graphs(model: ModelProto) -> list[GraphProto]:
    inner = [a.g for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [model.graph, *inner]


def _drop_casts(graph: GraphProto, result: str) -> None:
    """The Cast that makes a value becomes an Identity of what the Cast before it reads."""
    last = next(node for node in graph.node if list(node.output) == [result])
    before = next(node for node in graph.node if node.output[0] == last.input[0])
    if before.op_type == "Transpose":
        before = next(node for node in graph.node if node.output[0] == before.input[0])
    assert (last.op_type, before.op_type) == ("Cast", "Cast")
    read = before.input[0]
    graph.node.remove(before)
    last.op_type, last.input[0] = "Identity", read
    del last.attribute[:]


def _round(model: ModelProto, result: str) -> None:
    """A value is rounded to float16 before its readers."""
    graph = model.graph
    at = next(n for n, node in enumerate(graph.node) if result in node.output)
    for node in graph.node:
        node.input[:] = ["rounded" if name == result else name for name in node.input]
    graph.node.insert(at + 1, helper.make_node("Cast", [result], ["half"], "half", to=10))
    graph.node.insert(at + 2, helper.make_node("Cast", ["half"], ["rounded"], "rounded", to=1))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("text", [ROUNDED, BRANCHES])
def test_a_legal_model_reads_what_its_original_does(text: str, named: bool) -> None:
    original = _model(text, named=named)
    legal, _ = legalize(original, "nhwc")
    assert verify(legal, "nhwc", against=original).findings == ()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("result", ["f", "z"])
def test_a_round_trip_through_float16_that_is_gone_is_found_without_a_run(result: str, named: bool) -> None:
    original = _model(ROUNDED, named=named)
    legal, _ = legalize(original, "onnx")
    _drop_casts(legal.graph, result)
    found = verify(legal, "onnx", against=original, run=False).findings
    assert {each.rule for each in found if each.severity == "error"} == {"dataflow"}


@pytest.mark.parametrize("named", [True, False])
def test_one_that_is_gone_in_a_branch_is_found_too(named: bool) -> None:
    original = _model(BRANCHES, named=named)
    legal, _ = legalize(original, "onnx")
    _drop_casts(_graphs(legal)[1], "t")
    found = verify(legal, "onnx", against=original, run=False).findings
    assert {each.rule for each in found if each.severity == "error"} == {"dataflow"}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("value", ["x", "b", "c"])
def test_a_round_trip_through_float16_that_is_new_is_found_without_a_run(value: str, named: bool) -> None:
    original = _model(ROUNDED, named=named)
    legal, _ = legalize(original, "onnx")
    if value == "x":
        legal.graph.node.insert(0, helper.make_node("Identity", ["x"], ["given"], "given"))
        legal.graph.node[1].input[0], value = "given", "given"
    _round(legal, value)
    found = verify(legal, "onnx", against=original, run=False).findings
    assert {each.rule for each in found if each.severity == "error"} == {"dataflow", "operator"}


# Nothing names the axes of the second output, and all but one have equal extents.
SQUARE = """<ir_version: 9, opset_import: ["" : 18]>
net (float[1,4,8,8] x, float[4,4,3,3] w, float[4] scales) => (float[1,4,4,4] y, int64[1,4,4,4] i, float[1,4,8,8] z) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    y, i = MaxPool <kernel_shape = [2,2], strides = [2,2]> (a)
    s, t = Split <axis = 1, num_outputs = 2> (a)
    d = Sub (s, t)
    f = Concat <axis = 1> (d, t)
    none = Constant <value = int64[0] {}> ()
    g = ReduceMax <noop_with_empty_axes = 1> (f, none)
    z = Resize <mode = "nearest"> (g, , scales) }"""


def _node(model: ModelProto, operator: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type.partition("_")[0] == operator)


def _exchange_results(model: ModelProto) -> None:
    results = _node(model, "Split").output
    results[0], results[1] = results[1], results[0]


def _turn(model: ModelProto) -> None:
    turned = next(node for node in model.graph.node if list(node.output) == ["i"])
    assert (turned.op_type, list(turned.attribute[0].ints)) == ("Transpose", [0, 3, 1, 2])
    turned.attribute[0].ints[:] = [0, 3, 2, 1]


def _read_more(model: ModelProto) -> None:
    _node(model, "Resize").input[1] = "scales"


def _empty_means_all(model: ModelProto) -> None:
    del _node(model, "ReduceMax").attribute[:]


@pytest.mark.parametrize("change", [_exchange_results, _turn, _read_more, _empty_means_all])
def test_a_fault_that_a_run_may_not_show_is_found_without_one(change: Callable[[ModelProto], None]) -> None:
    original = _model(SQUARE, named=True)
    legal, _ = legalize(original, "nhwc")
    assert verify(legal, "nhwc", against=original, run=False).findings == ()
    change(legal)
    found = verify(legal, "nhwc", against=original, run=False).findings
    assert {each.rule for each in found if each.severity == "error"} & {
        "attribute",
        "dataflow",
        "layout-annotation",
        "operator",
    }


def test_another_version_of_onnxs_operators_is_a_warning() -> None:
    original = _model(ROUNDED, named=True)
    legal, _ = legalize(original, "onnx")
    legal.opset_import[0].version = 17
    found = verify(legal, "onnx", against=original, run=False).findings
    assert [(each.severity, each.expected, each.found) for each in found] == [("warning", "18", "17")]
