"""Faults that a run does not show: for few inputs, behind an operator that no runtime has, or without a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

from relayout import legalize
from relayout.verification import verify

NET = """net (float[2,4,6,6] x, float[4,4,3,3] w, float[4,4,3,3] v) => (float[2,4,6,6] y, float[2,4,6,6] z) {
    low = Constant <value = float {-60.0}> ()
    high = Constant <value = float {60.0}> ()
    dead = Min (x, high)
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    b = Clip (a, low, high)
    y = Softmax <axis = 1> (b)
    z = Tanh (a) }"""
CUSTOM = """net (float[2,4,6,5] x) => (float[2,4,6,5] y) <float[2,4,6,5] b> {
    a = Transpose <perm = [0,1,3,2]> (x)
    t = Transpose <perm = [0,1,3,2]> (a)
    c = Relu (t)
    b = acme.Foo (c)
    y = Relu (b) }"""
TURNED = """net (float[1,4,6,6] x, float[4,4,3,3] w) => (float[1,4,6,6] y) {
    a = Transpose <perm = [0,2,3,1]> (x)
    b = Sigmoid (a)
    c = Transpose <perm = [0,3,1,2]> (b)
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (c, w) }"""
LOOP = """net (float[2,4] x) => (float[2,4] y) {
    n = Constant <value = int64 {3}> ()
    other = Constant <value = int64 {2}> ()
    go = Constant <value = bool {1}> ()
    y = Loop (n, go, x) <body = body (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] t) {
        d = Identity (c)
        f = Cast <to = 1> (i)
        t = Add (s, f) }> }"""


def _model(text: str) -> ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18, "acme" : 1]> {text}')
    generator = np.random.default_rng(0)
    for value in list(model.graph.input)[1:]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        data = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, value.name))
        model.graph.input.remove(value)
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    return model


def _node(model: ModelProto, kind: str) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type == kind)


def _insert_behind(model: ModelProto, name: str, nodes: Sequence[NodeProto]) -> None:
    """Readers of a value take `odd`, which these nodes make of it."""
    at = next(n for n, node in enumerate(model.graph.node) if name in node.output)
    behind = list(model.graph.node)[at + 1 :]
    for node in behind:
        node.input[:] = ["odd" if read == name else read for read in node.input]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in list(model.graph.node)[: at + 1]]
    behind = [onnx.NodeProto.FromString(node.SerializeToString()) for node in behind]
    del model.graph.node[:]
    model.graph.node.extend([*kept, *nodes, *behind])


def _constant(name: str, data: object, dtype: type = np.int64) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(data, dtype)))


def _rarely(name: str) -> list[NodeProto]:
    """1 where an element is above a bound that no draw reaches, else 0."""
    return [
        helper.make_node("ReduceMax", [name], ["most"], keepdims=0),
        _constant("bound", 1e30, np.float32),
        helper.make_node("Greater", ["most", "bound"], ["is_rare"]),
        helper.make_node("Cast", ["is_rare"], ["step"], to=7),
    ]


def _added(name: str) -> list[NodeProto]:
    rare = [*_rarely(name), helper.make_node("Cast", ["step"], ["steps"], to=1)]
    return [*rare, helper.make_node("Add", [name, "steps"], ["odd"])]


def _written(name: str) -> list[NodeProto]:
    """They claim that a backend wrote them, for an operator that the model still has."""
    nodes = _added(name)
    for node in nodes:
        node.metadata_props.add(key="relayout.written_for", value="Conv")
    return nodes


def _gathered(name: str) -> list[NodeProto]:
    indices = [_constant("first", range(6)), helper.make_node("Add", ["first", "step"], ["shifted"])]
    indices += [_constant("count", 6), helper.make_node("Mod", ["shifted", "count"], ["indices"])]
    return [*_rarely(name), *indices, helper.make_node("Gather", [name, "indices"], ["odd"], axis=3)]


def _sliced(name: str) -> list[NodeProto]:
    ends = [_constant("one", [1]), helper.make_node("Reshape", ["step", "one"], ["start"]), _constant("end", [9])]
    ends += [_constant("axis", [3]), helper.make_node("Slice", [name, "start", "end", "axis"], ["part"])]
    ends += [_constant("zeros", [0] * 7), helper.make_node("Concat", ["zeros", "start"], ["widths"], axis=0)]
    return [*_rarely(name), *ends, helper.make_node("Pad", ["part", "widths"], ["odd"])]


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
@pytest.mark.parametrize("made", [_added, _written, _gathered, _sliced])
def test_a_fault_for_rare_inputs_is_found_in_operators_that_are_added(
    made: Callable[[str], list[NodeProto]], backend: str
) -> None:
    original = _model(NET)
    legal, _ = legalize(original, backend)
    _insert_behind(legal, "b", made("b"))
    assert not verify(legal, backend, against=original).passed


def test_an_operator_may_not_be_added_in_place_of_one_that_no_output_reads() -> None:
    original = _model(NET)
    legal, _ = legalize(original, "onnx")
    assert "Min" not in {node.op_type for node in legal.graph.node}
    bound = _constant("bound", 1e30, np.float32)
    _insert_behind(legal, "a", [bound, helper.make_node("Min", ["a", "bound"], ["odd"])])
    assert not verify(legal, "onnx", against=original).passed


def test_an_operator_may_not_be_added_in_place_of_one_that_only_moves_elements() -> None:
    original = _model(TURNED.replace("y = Conv", "d = Conv").replace("(c, w) }", "(c, w)  y = Dropout (d) }"))
    legal, _ = legalize(original, "onnx")
    assert "Dropout" not in {node.op_type for node in legal.graph.node}
    last = legal.graph.node[-1]
    last.output[0] = "d"
    legal.graph.node.extend([*_added("d")[:-1], helper.make_node("Add", ["d", "steps"], ["y"])])
    assert not verify(legal, "onnx", against=original).passed


@pytest.mark.parametrize("place", [1, 2])
def test_a_bound_that_no_draw_reaches_may_not_go(place: int) -> None:
    original = _model(NET)
    legal, _ = legalize(original, "nhwc")
    clip = _node(legal, "Clip")
    clip.input[place] = ""
    found = verify(legal, "nhwc", against=original)
    assert {(each.rule, each.operand) for each in found.findings if each.severity == "error"} == {("constant", place)}


def test_a_bound_that_bounds_nothing_may_go() -> None:
    original = _model(NET.replace("{-60.0}", "{-3.4028234663852886e38}"))
    other = onnx.ModelProto.FromString(original.SerializeToString())
    _node(other, "Clip").input[1] = ""
    assert verify(other, "onnx", against=original).passed


def test_a_custom_operator_may_not_read_a_constant_or_other_axes() -> None:
    original = _model(CUSTOM)
    legal, _ = legalize(original, "onnx")
    assert verify(legal, "onnx", against=original, static=True).passed
    constant = onnx.ModelProto.FromString(legal.SerializeToString())
    constant.graph.initializer.append(numpy_helper.from_array(np.ones((2, 4, 6, 5), np.float32), "s"))
    _node(constant, "Foo").input[0] = "s"
    turned = onnx.ModelProto.FromString(legal.SerializeToString())
    _insert_behind(turned, "c", [helper.make_node("Transpose", ["c"], ["odd"], perm=[0, 1, 3, 2])])
    for wrong, rule in ((constant, "dataflow"), (turned, "element-order")):
        found = verify(wrong, "onnx", against=original, static=True).findings
        assert rule in {each.rule for each in found if each.severity == "error"}


def _exchange_results(model: ModelProto) -> None:
    softmax, tanh = _node(model, "Softmax"), _node(model, "Tanh")
    softmax.output[0], tanh.output[0] = tanh.output[0], softmax.output[0]


def _exchange_bounds(model: ModelProto) -> None:
    clip = _node(model, "Clip")
    clip.input[1], clip.input[2] = clip.input[2], clip.input[1]


def _turn_softmax(model: ModelProto) -> None:
    _node(model, "Softmax").attribute[0].i = 2


def _leave_axis_out(model: ModelProto) -> None:
    del _node(model, "Softmax").attribute[:]


def _mix(model: ModelProto) -> None:
    shape = [_constant("shape", [2, 4, 6, 6])]
    turned = [helper.make_node("Transpose", ["b"], ["turned"], perm=[0, 3, 2, 1])]
    _insert_behind(model, "b", [*shape, *turned, helper.make_node("Reshape", ["turned", "shape"], ["odd"])])


def _gather(model: ModelProto) -> None:
    _insert_behind(
        model, "b", [_constant("at", [1, 0, 2, 3]), helper.make_node("Gather", ["b", "at"], ["odd"], axis=1)]
    )


def _expand(model: ModelProto) -> None:
    numbers = [_constant("zero", [0]), _constant("one", [1]), _constant("shape", [2, 4, 6, 6])]
    first = helper.make_node("Slice", ["b", "zero", "one", "one"], ["first"])
    _insert_behind(model, "b", [*numbers, first, helper.make_node("Expand", ["first", "shape"], ["odd"])])


@pytest.mark.parametrize(
    "change", [_exchange_results, _exchange_bounds, _turn_softmax, _leave_axis_out, _mix, _gather, _expand]
)
def test_a_fault_is_found_without_a_run(change: Callable[[ModelProto], None]) -> None:
    original = _model(NET)
    legal, _ = legalize(original, "onnx")
    assert verify(legal, "onnx", against=original, run=False).findings == ()
    change(legal)
    assert not verify(legal, "onnx", against=original, run=False).passed


def test_a_view_that_mixes_elements_has_no_order_that_an_annotation_may_state() -> None:
    original = _model(TURNED)
    legal, _ = legalize(original, "onnx")
    assert [node.op_type for node in legal.graph.node] == ["Sigmoid", "Conv"]
    mixing = [_constant("shape", [1, 4, 6, 6]), helper.make_node("Transpose", ["b"], ["odd_turned"], perm=[0, 3, 2, 1])]
    mixing.append(helper.make_node("Reshape", ["odd_turned", "shape"], ["odd"]))
    _insert_behind(legal, "b", mixing)
    for node in legal.graph.node:
        for names in (node.input, node.output):
            names[:] = [{"b": "b_before", "odd": "b"}.get(name, name) for name in names]
    found = verify(legal, "onnx", against=original, run=False).findings
    assert ("element-order", "note") in {(each.rule, each.severity) for each in found}
    stated = next(value for value in legal.graph.value_info if value.name == "b")
    before = onnx.ValueInfoProto.FromString(stated.SerializeToString())
    before.name = "b_before"
    before.metadata_props.add(key="relayout.source", value="b")
    legal.graph.value_info.append(before)
    found = verify(legal, "onnx", against=original, run=False).findings
    assert "layout-annotation" in {each.rule for each in found if each.severity == "error"}


def test_elements_that_are_cropped_without_a_run_are_said_to_be_unseen() -> None:
    original = _model(NET)
    legal, _ = legalize(original, "onnx")
    numbers = [_constant("widths", [0, 0, 1, 0, 0, 0, 0, 0]), _constant("zero", [0]), _constant("end", [6])]
    pad = helper.make_node("Pad", ["b", "widths"], ["wide"])
    crop = helper.make_node("Slice", ["wide", "zero", "end", "axis"], ["odd"])
    _insert_behind(legal, "b", [*numbers, _constant("axis", [2]), pad, crop])
    found = verify(legal, "onnx", against=original, run=False).findings
    assert ("note", "no run compares the elements that the model's own Pad and Slice take (nodes: 2)") in {
        (each.severity, each.message) for each in found
    }


@pytest.mark.parametrize(("node", "place", "name"), [("Loop", 0, "other"), ("Cast", 0, "n")])
def test_another_count_of_rounds_or_number_of_a_round_is_found_without_a_run(node: str, place: int, name: str) -> None:
    original = _model(LOOP)
    legal, _ = legalize(original, "onnx")
    assert verify(legal, "onnx", against=original, run=False).findings == ()
    nodes = [*legal.graph.node, *_node(legal, "Loop").attribute[0].g.node]
    next(each for each in nodes if each.op_type == node).input[place] = name
    if name == "other" and "other" not in {each.output[0] for each in legal.graph.node}:
        legal.graph.node.insert(0, _constant("other", 2))
    assert not verify(legal, "onnx", against=original, run=False).passed


def test_operators_that_a_post_pass_may_have_added_are_said_to_be_unseen_without_a_run() -> None:
    original = _model(NET)
    legal, _ = legalize(original, "xla-cpu")
    _insert_behind(legal, "b", [helper.make_node("Abs", ["b"], ["odd"])])
    found = verify(legal, "xla-cpu", against=original, run=False).findings
    assert ("note", "no run compares the operators that the backend's post-pass adds") in {
        (each.severity, each.message) for each in found
    }


def test_other_ends_of_a_slice_are_found_without_a_run() -> None:
    original = _model("""net (float[2,6] x) => (float[2,2] y) {
        start = Constant <value = int64[1] {1}> ()
        end = Constant <value = int64[1] {3}> ()
        axis = Constant <value = int64[1] {1}> ()
        y = Slice (x, start, end, axis) }""")
    legal, _ = legalize(original, "onnx")
    assert verify(legal, "onnx", against=original, run=False).findings == ()
    for node in legal.graph.node:
        if node.output[0] in ("start", "end"):
            number = numpy_helper.to_array(node.attribute[0].t)
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(number + 1))
    [fault, note] = verify(legal, "onnx", against=original, run=False).findings
    assert (fault.rule, fault.severity, fault.node) == ("axis-mismatch", "error", "n3")
    assert (note.rule, note.severity, note.node) == ("constant", "note", "n3")
    assert not verify(legal, "onnx", against=original).passed
