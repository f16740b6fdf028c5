"""Shapes of several inferences of one graph: a name stands for one extent, and what one of them knows stays."""

from __future__ import annotations

import onnx
import pytest
from graphs import Net
from onnx import TensorProto, helper

from relayout.model.dims.shape_merging import merge_shapes, names_in
from relayout.model.io import read_model
from relayout.model.shape_inference import infer_shapes

Dims = list[int | str | None]


def graph_of(**shapes: Dims) -> onnx.GraphProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()]
    return helper.make_graph([], "net", [], [], value_info=infos)


def shapes_of(graph: onnx.GraphProto) -> dict[str, Dims]:
    return {
        value.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim
        ]
        for value in graph.value_info
    }


def test_a_name_that_inference_gives_anew_is_not_that_of_a_declared_result() -> None:
    """The arithmetic of the Reshape makes inference run again, which does not know what Pack gives."""
    net = Net()
    packed = net.node("Pack", net.input("x", ("n", 8, 3)), domain="acme")
    places = net.node("NonZero", net.input("y", ("m", 4)))
    extents = net.node("Shape", net.input("z", (8, 6, 4)))
    rows = net.node("Div", net.node("Gather", extents, net.constant([0])), net.constant([2]))
    net.output(net.node("Relu", packed))
    net.output(places, TensorProto.INT64)
    net.output(net.node("Reshape", "z", net.node("Concat", rows, net.constant([-1]), axis=0)))
    model = net.model()
    model.graph.value_info.append(helper.make_tensor_value_info(packed, TensorProto.FLOAT, ["unk__0", 2, 3]))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    shapes = {value.name: value.shape for node in read_model(model).graph for value in node.outputs}
    assert shapes[packed] is not None
    assert shapes[places] is not None
    assert shapes[packed][0] == "unk__0"
    assert shapes[places][1] not in ("unk__0", None)


def test_both_inferences_say_what_they_know() -> None:
    graph = graph_of(a=["n", 120, "unk__0"], b=["unk__1", "unk__2"], c=["unk__1", "unk__0"], d=["unk__2"])
    better = graph_of(a=["unk__0", "unk__1", "unk__2"], b=["n", 7], c=["unk__3", "unk__2"], e=["unk__2", "unk__4"])
    merge_shapes(better, graph, frozenset())
    assert shapes_of(graph) == {
        "a": ["n", 120, "unk__0"],
        "b": ["n", 7],
        "c": ["n", "unk__0"],
        "d": [7],
        "e": ["unk__0", "unk__3"],
    }


def test_dims_of_one_name_with_different_numbers_have_each_their_own() -> None:
    graph = graph_of(a=["unk__0"], b=["unk__0"])
    merge_shapes(graph_of(a=[3], b=[4]), graph, frozenset())
    assert shapes_of(graph) == {"a": [3], "b": [4]}


def test_what_two_inferences_know_together_is_known_behind_it() -> None:
    """The pool is as high as the rows that it is joined with, and so is the convolution of it: a legal model says the
    former, and reading it tells no more."""
    net = Net()
    pool = net.node("AveragePool", net.input("x", ("n", 3, "height", "width")), kernel_shape=[3, 2], strides=[3, 2])
    large = net.input("large", ("n", 6, 2, 20))
    target = net.node("Div", net.node("Shape", large), net.constant([1, 2, 2, 2]))
    rows = net.node("Reshape", net.input("rows", ("n", 30)), target)
    net.output(net.node("Relu", net.node("Concat", pool, rows, axis=1)))
    beside = net.node("Conv", pool, net.weight(4, 3, 1, 1))
    net.output(beside)
    (shape,) = [value.shape for value in read_model(net.model()).graph.outputs if value.name == beside]
    assert shape is not None
    assert shape.dims[2:] == (1, 10)


def test_of_two_names_for_one_extent_that_of_the_value_declared_first_stays() -> None:
    graph = graph_of(declared=["unk__42"], inferred=["unk__20"])
    merge_shapes(graph_of(declared=["unk__14"], inferred=["unk__14"]), graph, frozenset())
    assert shapes_of(graph) == {"declared": ["unk__42"], "inferred": ["unk__42"]}


@pytest.mark.parametrize("declared", ["x", "float[a,b,c,d] x", "float[?,8,?,?] x"])
def test_an_input_that_is_an_output_too_keeps_its_shape(declared: str) -> None:
    """onnx_ir makes one value of both, of the type that is read last."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]> net (float[2,8,6,n] x) => (float[2,8,6,n] y, {declared}) {{
        y = Relu (x) }}"""
    (x,) = read_model(onnx.parser.parse_model(text)).graph.inputs
    assert [str(dim) for dim in x.shape or ()] == ["2", "8", "6", "n"]


def test_so_does_an_input_of_a_body() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> net (int64 trips, float[2,4,6,n] x) => (y) <bool go = {1}> {
        y = Loop (trips, go, x) <body = step (int64 i, bool c, float[2,4,6,n] s) => (c, s) { unread = Relu (s) }> }"""
    (loop,) = read_model(onnx.parser.parse_model(text)).graph
    (_, taken, state) = loop.attributes["body"].as_graph().inputs
    assert taken.shape is not None
    assert [str(dim) for dim in state.shape or ()] == ["2", "4", "6", "n"]


def test_dims_that_are_named_again_get_no_names_of_earlier_ones() -> None:
    """A declared shape is wrong, so all are inferred anew, and onnx numbers its names from 0."""
    net = Net()
    x = net.input("x", (4, 3))
    wrong = net.node("Exp", x)
    first, second = net.node("NonZero", x), net.node("NonZero", wrong)
    net.output(net.node("Concat", first, second, axis=1), TensorProto.INT64)
    model = net.model()
    for name, kind, shape in ((wrong, TensorProto.FLOAT, [9, 3]), (second, TensorProto.INT64, [2, "unk__0"])):
        model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
    notes: list[str] = []
    names = names_in(infer_shapes(model, notes=notes).graph)
    assert len(notes) == 1
    assert names
    assert "unk__0" not in names


def test_a_wrong_shape_of_a_result_of_a_branch_does_not_stay() -> None:
    """A better inference has removed it, and onnx enters no other one for the result of a graph inside."""

    def branching(dims: Dims | None) -> onnx.GraphProto:
        result = helper.make_tensor_value_info("result", TensorProto.FLOAT, dims)
        branch = helper.make_graph([helper.make_node("Identity", ["x"], ["result"])], "branch", [], [result])
        node = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)
        outer = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)
        return helper.make_graph([node], "net", [], [outer])

    graph = branching(["n"])
    merge_shapes(branching(None), graph, frozenset())
    inner = [attribute.g.output[0] for attribute in graph.node[0].attribute]
    assert [each.type.tensor_type.HasField("shape") for each in (*inner, graph.output[0])] == [False, False, True]


def test_a_sequence_that_a_loop_carries_stays_one() -> None:
    """It has no shape, as a result has none whose declared shape was wrong."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    body = helper.make_graph([], "body", [], [helper.make_value_info("seen", kind)])
    graph = helper.make_graph([helper.make_node("Loop", [], ["all"], body=body)], "net", [], [])
    better = onnx.GraphProto()
    better.CopyFrom(graph)
    merge_shapes(better, graph, frozenset())
    assert graph == better
