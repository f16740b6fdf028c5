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

# The first result of both is left out.
RECURRENT = """<ir_version: 9, opset_import: ["" : 18]>
net (float[5,2,3] x, float[1,4,3] w, float[1,4,4] r, float[1,4,4] v) => (float[1,4,1] y) {
    "", a = RNN <hidden_size = 4> (x, w, r)
    b = Transpose <perm = [1, 0, 2]> (a)
    c = Relu (b)
    "", d = RNN <hidden_size = 4> (c, r, v)
    y = Transpose <perm = [1, 2, 0]> (d) }"""


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
@pytest.mark.parametrize("text", [ROUNDED, BRANCHES, RECURRENT])
def test_a_legal_model_reads_what_its_original_does(text: str, named: bool) -> None:
    original = _model(text, named=named)
    legal, _ = legalize(original, "nhwc")
    assert verify(legal, "nhwc", against=original).findings == ()


@pytest.mark.parametrize("named", [True, False])
def test_another_operand_is_found_where_the_first_result_is_left_out(named: bool) -> None:
    original = _model(RECURRENT, named=named)
    legal, _ = legalize(original, "onnx")
    first, second = [node for node in legal.graph.node if node.op_type == "RNN"]
    second.input[2] = first.input[2]
    found = verify(legal, "onnx", against=original, run=False).findings
    assert {each.rule for each in found if each.severity == "error"} == {"dataflow"}


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


SCALED = """<ir_version: 9, opset_import: ["" : 18]>
net (float[2,4,6,6] x, float[4,4,3,3] w) => (float[2,4,6,6] y) {
    s = Constant <value = float {0.03125}> ()
    z = Constant <value = uint8 {128}> ()
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (d, w) }"""


@pytest.mark.parametrize(("operator", "value"), [("Neg", "s"), ("Floor", "d"), ("Neg", "y")])
def test_an_operator_that_is_new_is_found_where_its_result_has_a_name_of_the_original(
    operator: str, value: str
) -> None:
    """A scale below zero differs from the right one only where the quantized values saturate."""
    original = _model(SCALED, named=True)
    legal, _ = legalize(original, "onnx")
    made = next(index for index, node in enumerate(legal.graph.node) if list(node.output) == [value])
    legal.graph.node[made].output[0] = "before"
    legal.graph.node.insert(made + 1, helper.make_node(operator, ["before"], [value], "new"))
    found = verify(legal, "onnx", against=original, run=False).findings
    assert "dataflow" in {each.rule for each in found if each.severity == "error"}


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


# The original is itself a legal model.

REDUCED = """<ir_version: 8, opset_import: ["" : 18]>
tiles (float[1,3,5,5] x) => (float[1,1,6,1] y) {
    a = Transpose<perm = [0, 3, 1, 2]> (x)
    s = Constant<value_ints = [1, 1, 25, 3]> ()
    b = Reshape (a, s)
    c = Concat<axis = 1> (b, b, b, b)
    d = DepthToSpace<blocksize = 2> (c)
    k = Constant<value_ints = [2]> ()
    e = ReduceProd (d, k)
    f = Transpose<perm = [0, 2, 3, 1]> (e)
    y = Abs (f) }"""
BLOCKS = """<ir_version: 8, opset_import: ["" : 18]>
blocks (float[3,4,5,6] x) => (float[3,5,6,16] y) {
    a = Concat<axis = 2> (x, x)
    b = Concat<axis = 3> (a, a)
    c = SpaceToDepth<blocksize = 2> (b)
    y = Transpose<perm = [0, 2, 3, 1]> (c) }"""


@pytest.mark.parametrize(
    ("text", "first", "second"), [(REDUCED, "x86-nchwc", "x86-nchwc"), (BLOCKS, "nhwc", "xla-cpu")]
)
def test_a_legal_model_may_be_the_original(text: str, first: str, second: str) -> None:
    """Both tiles of an axis may be reduced to 1, and relayout's own SpaceToDepth may become a Reshape."""
    legal, _ = legalize(onnx.parser.parse_model(text), first)
    again, _ = legalize(legal, second)
    verification = verify(again, second, against=legal)
    assert not verification.findings
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


@pytest.mark.parametrize(("order", "is_right"), [("0,3,1,2", True), ("3,0,2,1", False)])
def test_the_order_of_a_copy_counts_the_axes_of_the_first_source(order: str, is_right: bool) -> None:
    """`a` lies as 3,2,1,0 of its source, and the copy is made from a Transpose of it that the original has."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["y"], perm=[3, 1, 0, 2]),
        helper.make_node("Transpose", ["y"], ["a_laid"], perm=[0, 2, 3, 1]),
        helper.make_node("Neg", ["a_laid"], ["z"]),
    ]
    given, made = [2, 4, 4, 4], [4, 2, 4, 4]
    infos = {
        name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in {"x": given, "y": [4, 4, 2, 4], "z": made, "a": given, "a_laid": made}.items()
    }
    infos["a"].metadata_props.add(key="relayout.order", value="3,2,1,0")
    infos["a_laid"].metadata_props.add(key="relayout.order", value=order)

    def model(operators: list[onnx.NodeProto], *inner: str) -> ModelProto:
        ends = [infos["x"]], [infos["y"], infos["z"]]
        graph = helper.make_graph(operators, "copies", *ends, value_info=[infos[name] for name in inner])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    direct = helper.make_node("Transpose", ["a"], ["turned"], perm=[3, 0, 2, 1])
    original = model([*nodes[:2], direct, helper.make_node("Neg", ["turned"], ["z"])], "a")
    verification = verify(model(nodes, "a", "a_laid"), "onnx", against=original)
    assert [each.rule for each in verification.findings] == ([] if is_right else ["layout-annotation"])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("place", ["x", "c", "y"])
def test_elements_in_reverse_are_found_without_a_run(place: str, named: bool) -> None:
    """A crop is a Slice too, and a rewrite adds those."""
    source = _model(SLICED, named=named)
    legal, _ = legalize(source, "nhwc")
    assert verify(legal, "nhwc", source, run=False).passed
    model = ModelProto()
    model.CopyFrom(legal)
    _reverse(model, place)
    assert not verify(model, "nhwc", source, run=False).passed


SLICED = """<ir_version: 9, opset_import: ["" : 18]>
net (float[1,4,6,6] x, float[4,4,1,1] w) => (float[1,4,3,6] y)
<int64[1] start = {5}, int64[1] end = {-7}, int64[1] rows = {2}, int64[1] step = {-2}> {
    a = Conv (x, w)
    b = Slice (a, start, end, rows, step)
    c = Relu (b)
    y = Conv (c, w) }"""


def _reverse(model: ModelProto, name: str) -> None:
    """Put a Slice that reverses the second axis in front of the readers of a value, or of an output."""
    graph = model.graph
    for node in graph.node:
        for k, result in enumerate(node.output):
            if result == name and name == graph.output[0].name:
                node.output[k] = f"{name}_right"
        for k, read in enumerate(node.input):
            if read == name:
                node.input[k] = f"{name}_reversed"
    given, result = (f"{name}_right", name) if name == graph.output[0].name else (name, f"{name}_reversed")
    for key, number in (("first", -1), ("last", -100), ("second", 1), ("back", -1)):
        graph.initializer.append(helper.make_tensor(key, onnx.TensorProto.INT64, [1], [number]))
    made = helper.make_node("Slice", [given, "first", "last", "second", "back"], [result], f"{name}_reverse")
    places = [n for n, node in enumerate(graph.node) if given in node.output]
    graph.node.insert(places[0] + 1 if places else 0, made)
