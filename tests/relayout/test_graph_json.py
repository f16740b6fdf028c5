from __future__ import annotations

import base64
import copy
import json
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import relayout
from relayout.errors import InputError, RelayoutError
from relayout.graph_codec import BOUNDARY_LAYOUT_KEY
from relayout.graph_json import GraphJson
from relayout.model_io import read_model, to_json, to_proto
from relayout.tensors import AbsentTensor, relaid

Json = dict[str, Any]


def graph(*nodes: Json, **fields: Any) -> Json:
    """A graph from x, float[2,3], to y."""
    return {
        "opset": 20,
        "inputs": [{"name": "x", "dtype": "float", "shape": [2, 3]}],
        "outputs": [{"name": "y"}],
        "nodes": list(nodes) or [{"op": "Relu", "inputs": ["x"], "outputs": ["y"]}],
    } | fields


def odd(**attributes: Any) -> Json:
    """A graph of one operator that ONNX does not define."""
    return graph({"op": "Odd", "domain": "mine", "inputs": ["x"], "outputs": ["y"], "attributes": attributes})


def with_constant(**fields: Any) -> Json:
    constant = {"name": "k", "dtype": "float", "shape": [2, 3]} | fields
    return graph({"op": "Add", "inputs": ["x", "k"], "outputs": ["y"]}, constants=[constant])


def constant(source: Json) -> Any:
    value = read_model(source).graph.initializers["k"].const_value
    assert value is not None
    return value


def parse(text: str) -> onnx.ModelProto:
    imports = '["" : 20, "relayout" : 1, "mine" : 1]'
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: {imports}> {text}")


def through_json(model: ir.Model) -> ir.Model:
    return read_model(json.loads(json.dumps(to_json(model), allow_nan=False)))


def same(one: ir.Model, other: ir.Model) -> bool:
    first, second = (to_proto(model).SerializeToString(deterministic=True) for model in (one, other))
    return bool(first == second)


# --- graphs ----------------------------------------------------------------------------------------------------------


def test_a_graph_in_json_is_a_model_that_runs() -> None:
    source = graph(
        {"op": "Transpose", "inputs": ["x"], "outputs": ["t"], "attributes": {"perm": [1, 0]}},
        {"op": "MatMul", "inputs": ["x", "t"], "outputs": ["y"]},
    )
    model = read_model(source)
    assert model.graph.outputs[0].shape == ir.Shape([2, 2])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(ReferenceEvaluator(to_proto(model)).run(None, {"x": x})[0], x @ x.T)


GRAPHS = {
    "subgraph": """g (bool c, float[N,4] x) => (y) {
        y = If (c) <then_branch = t () => (a) { a = Relu (x) },
                    else_branch = e () => (b) { k = Constant <value = float[4] {1,2,3,4}> ()  b = Add (x, k) }>
    }""",
    "left-out operands": """g (float[1,1,4,4] x) => (y) {
        y = Resize <mode = "nearest"> (x, , , n)  n = Constant <value_ints = [1, 1, 8, 8]> () }""",
    "custom operator": """g (float[2] x) => (float[3] y) { y, , z = mine.Odd <a = 1, b = 0.1, c = "s", d = [1, 2],
        e = [0.5], f = ["s", "t"], g = t () => (u) { u = Relu (x) }> (x, x) }""",
    "sequence": """g (float[2] x, int64 i) => (float[2] y) {
        s = SequenceConstruct (x, x)  y = SequenceAt (s, i) }""",
    "optional": "g (optional(float[2]) x) => (y) { y = OptionalGetElement (x) }",
    "legal operator": """g (float[1,4,4,3] x) => (y) { y = relayout.MaxPool:v1 <data_layout = "NHWC"> (x) }
        <domain: "relayout", overload: "v1", opset_import: ["" : 20]>
        MaxPool <data_layout, size: ints = [2, 2]> (x) => (y) {
            a = Transpose <perm = [0, 3, 1, 2]> (x)
            b = MaxPool <kernel_shape: ints = @size> (a)
            y = Transpose <perm = [0, 2, 3, 1]> (b) }""",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_model_survives_json(name: str) -> None:
    model = read_model(parse(GRAPHS[name]))
    assert same(through_json(model), through_json(through_json(model)))
    proto, again = to_proto(model), to_proto(through_json(model))
    assert [node.op_type for node in again.graph.node] == [node.op_type for node in proto.graph.node]
    assert again.graph.value_info == proto.graph.value_info
    assert again.functions == proto.functions
    assert again.graph.input == proto.graph.input
    assert again.graph.output == proto.graph.output


def test_what_the_model_says_of_itself_survives_json() -> None:
    source = parse("g (float[2] x) => (y) <float[400] k> { a = Relu (x)  y = mine.Odd (a, k) }")
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(400, np.float32), "k"))
    source.producer_name, source.domain, source.doc_string, source.graph.doc_string = "p", "d", "model", "graph"
    source.graph.node[0].doc_string, source.graph.node[0].name = "node", "n"
    for entries in (source, source.graph, source.graph.node[0], source.graph.input[0], source.graph.output[0]):
        entries.metadata_props.add(key="key", value="text")
    model = read_model(source)
    model.graph[0].outputs[0].metadata_props["relayout.layout"] = "NHWC"
    model.graph.initializers["k"].metadata_props["relayout.order"] = "0"
    assert same(model, through_json(model))


def test_the_names_of_numpys_types_are_understood() -> None:
    source = graph()
    source["inputs"][0]["dtype"] = "float64"
    model = read_model(source)
    assert model.graph.outputs[0].dtype == ir.DataType.DOUBLE
    assert to_json(model)["inputs"][0]["dtype"] == "double"


def test_extents_may_be_symbols_or_unknown() -> None:
    source = graph(inputs=[{"name": "x", "dtype": "float", "shape": ["N", None, 0, 7]}])
    assert to_json(read_model(source))["inputs"][0]["shape"] == ["N", None, 0, 7]


def test_a_rank_may_be_unknown() -> None:
    model = read_model(graph(inputs=[{"name": "x", "dtype": "float"}]))
    assert model.graph.inputs[0].shape is None
    assert "shape" not in to_json(model)["inputs"][0]


def test_what_is_written_is_what_the_schema_says() -> None:
    schema = GraphJson.model_json_schema()
    for text in GRAPHS.values():
        jsonschema.validate(to_json(read_model(parse(text))), schema)


def test_a_model_without_an_ir_version_gets_one_that_its_opset_needs() -> None:
    assert read_model(graph()).ir_version == 10
    assert read_model(graph(opset=24)).ir_version == 12


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_a_boundary_layout_is_kept() -> None:
    source = graph()
    source["inputs"][0]["layout"] = "N[a=32]C"
    model = read_model(source)
    assert model.graph.inputs[0].metadata_props[BOUNDARY_LAYOUT_KEY] == "N[a=32]C"
    assert to_json(through_json(model))["inputs"][0]["layout"] == "N[a=32]C"


@pytest.mark.parametrize("layout", ["{0,1}", "NC4c", "NCc[tile:4]"])
def test_a_boundary_layout_may_be_in_xlas_or_tvms_words(layout: str) -> None:
    source = graph()
    source["inputs"][0]["layout"] = layout
    assert to_json(read_model(source))["inputs"][0]["layout"] == layout


def test_the_layout_of_a_scalar_is_empty_and_kept() -> None:
    source = graph(inputs=[{"name": "x", "dtype": "float", "shape": [], "layout": ""}])
    assert to_json(read_model(source))["inputs"][0]["layout"] == ""


@pytest.mark.parametrize(
    ("layout", "problem"),
    [("NHWC", "does not fit the value's rank"), ("N[a=0]C", "not a layout"), ("N!", "not a layout")],
)
def test_a_layout_has_to_be_one_and_to_fit(layout: str, problem: str) -> None:
    for side in ("inputs", "outputs"):
        source = graph()
        source[side][0]["layout"] = layout
        with pytest.raises(InputError, match=problem) as caught:
            read_model(source)
        assert f"value '{source[side][0]['name']}'" in caught.value.where


def test_a_layout_inside_the_graph_is_refused() -> None:
    with pytest.raises(InputError, match="a layout of a value inside the graph"):
        read_model(graph(values=[{"name": "y", "layout": "NC"}]))


# --- constants -------------------------------------------------------------------------------------------------------

DATA = base64.b64encode(np.arange(6, dtype="<f4").tobytes()).decode()


@pytest.mark.parametrize(
    "given",
    [{"data": DATA}, {"values": [0, 1, 2, 3, 4, 5]}, {"values": [[0, 1, 2], [3.0, 4.0, 5.0]]}],
    ids=["base64", "flat", "nested"],
)
def test_a_constants_data_has_three_forms(given: Json) -> None:
    np.testing.assert_array_equal(constant(with_constant(**given)).numpy(), np.arange(6).reshape(2, 3))


def test_a_constant_without_data_is_absent() -> None:
    tensor = constant(with_constant())
    assert isinstance(tensor, AbsentTensor)
    assert (tensor.dtype, list(tensor.shape), tensor.transform) == (ir.DataType.FLOAT, [2, 3], ())


def test_a_constant_without_elements_is_not_absent() -> None:
    source = graph(constants=[{"name": "k", "dtype": "float", "shape": [0]}])
    assert constant(source).numpy().shape == (0,)


def test_the_answer_says_what_to_do_to_absent_data() -> None:
    source = odd()
    steps = [{"op": "transpose", "perm": [1, 0]}]
    source["constants"] = [{"name": "k", "dtype": "float", "shape": [3, 2], "transform": steps}]
    model = read_model(source)
    value = model.graph.initializers["k"]
    assert value.const_value is not None
    value.const_value = relaid(value.const_value, [{"op": "reshape", "shape": [2, 3]}])
    value.shape = ir.Shape([2, 3])
    expected = {
        "name": "k",
        "dtype": "float",
        "shape": [2, 3],
        "transform": [*steps, {"op": "reshape", "shape": [2, 3], "from": [3, 2]}],
    }
    assert to_json(model)["constants"] == [expected]
    assert constant(to_json(model)).transform == tuple(expected["transform"])


def test_every_step_survives_and_is_checked_against_the_others() -> None:
    steps = [
        {"op": "transpose", "perm": [1, 0]},
        {"op": "pad", "pads": [0, 0, 3, 0]},
        {"op": "reshape", "shape": [2, 8], "from": [8, 2]},
        {"op": "crop", "shape": [2, 3], "from": [2, 8]},
    ]
    source = graph(constants=[{"name": "k", "dtype": "float", "shape": [2, 3], "transform": steps}])
    assert to_json(read_model(source))["constants"][0]["transform"] == steps


@pytest.mark.parametrize(
    ("backend", "options", "operators"),
    [
        ("tpu", {}, {"transpose", "pad", "reshape"}),
        ("x86-nchwc", {}, set()),
        ("convert-layout", {"desired_layouts": {"Conv": ["NCHW16c", "OIHW16i16o"]}}, set()),
    ],
)
def test_a_graph_without_weights_is_legal_json_for_blocks_too(
    backend: str, options: Json, operators: set[str]
) -> None:
    net = Net()
    value = net.conv(net.node("Relu", net.conv(net.input("x", (1, 3, 32, 32)), 3, 24, 7, strides=[2, 2])), 24, 40)
    net.output(value)
    source = to_json(read_model(net.model()), weights=False)
    legal, _ = relayout.legalize(source, backend, **options)
    assert operators <= {step["op"] for each in legal["constants"] for step in each.get("transform", [])}
    assert to_json(read_model(json.loads(json.dumps(legal)))) == legal
    checked = relayout.load_backend(backend, options=options)
    assert relayout.verify(legal, checked, against=source).passed


STEP_FAULTS: dict[str, tuple[list[Json], int]] = {
    "an axis twice": ([{"op": "transpose", "perm": [0, 0]}], 0),
    "too few axes": ([{"op": "transpose", "perm": [0]}], 0),
    "another shape": ([{"op": "reshape", "shape": [6]}], 0),
    "elements lost": ([{"op": "reshape", "shape": [2, 3], "from": [7]}], 0),
    "elements found": ([{"op": "crop", "shape": [2, 3], "from": [2, 2]}], 0),
    "too few pads": ([{"op": "pad", "pads": [1, 1]}], 0),
    "more zeros than elements": ([{"op": "pad", "pads": [0, 0, 3, 0]}], 0),
    "steps that do not meet": (
        [{"op": "pad", "pads": [0, 1]}, {"op": "reshape", "shape": [2, 3], "from": [3, 2]}],
        0,
    ),
}


@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_steps_that_lead_elsewhere_are_an_error(fault: str) -> None:
    steps, number = STEP_FAULTS[fault]
    source = graph(constants=[{"name": "k", "dtype": "float", "shape": [2, 3], "transform": steps}])
    with pytest.raises(InputError, match="transform do not fit") as caught:
        read_model(source)
    assert caught.value.where.endswith(f"constant 'k', transform[{number}]")


def test_without_weights_large_constants_stay_at_home_and_small_ones_come() -> None:
    source = graph(
        {"op": "MatMul", "inputs": ["x", "w"], "outputs": ["m"]},
        {"op": "Reshape", "inputs": ["m", "s"], "outputs": ["y"]},
        constants=[
            {"name": "w", "dtype": "float", "shape": [300, 3], "values": [0.5] * 900},
            {"name": "s", "dtype": "int64", "shape": [1], "values": [-1]},
        ],
    )
    source["nodes"][0]["inputs"] = ["x", "t"]
    source["nodes"].insert(0, {"op": "Transpose", "inputs": ["w"], "outputs": ["t"]})
    model = read_model(source)
    weight = model.graph.initializers["w"]
    assert weight.const_value is not None
    weight.const_value = relaid(weight.const_value, [{"op": "transpose", "perm": [1, 0]}])
    large, small = to_json(model, weights=False)["constants"]
    assert large["transform"] == [{"op": "transpose", "perm": [1, 0]}]
    assert "data" not in large
    assert small["values"] == [-1]
    assert "data" in to_json(model)["constants"][0]


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("bool", [True, False], np.array([True, False])),
        ("int8", [-128, 127], np.array([-128, 127], np.int8)),
        ("uint64", [0, 2**64 - 1], np.array([0, 2**64 - 1], np.uint64)),
        ("float16", [0.5, "inf"], np.array([0.5, np.inf], np.float16)),
        ("float", ["nan", "-inf"], np.array([np.nan, -np.inf], np.float32)),
        ("string", ["a", "ä"], np.array([b"a", "ä".encode()])),
    ],
)
def test_elements_are_of_the_constants_type(dtype: str, values: list[Any], expected: np.ndarray) -> None:
    source = odd()
    source["constants"] = [{"name": "k", "dtype": dtype, "shape": [2], "values": values}]
    np.testing.assert_array_equal(constant(source).numpy(), expected)
    np.testing.assert_array_equal(constant(to_json(read_model(source))).numpy(), expected)


CONSTANT_FAULTS: dict[str, tuple[Json, str]] = {
    "unknown dtype": ({"dtype": "float128", "data": DATA}, "unknown dtype"),
    "no base64": ({"data": "%%%"}, "is not base64"),
    "no ASCII": ({"data": "ä"}, "is not base64"),
    "short data": ({"data": "AAAA"}, "data does not fit its shape"),
    "too few values": ({"values": [1]}, "values do not fit its shape"),
    "uneven values": ({"values": [[0, 1, 2, 3], 4, 5]}, "values do not fit its shape"),
    "text for numbers": ({"values": ["a"] * 6}, "not a number"),
    "fractions for integers": ({"dtype": "int32", "values": [0.5] * 6}, "element has the wrong type"),
    "truth for numbers": ({"values": [True] * 6}, "element has the wrong type"),
    "nothing for numbers": ({"values": [None] * 6}, "element has the wrong type"),
    "out of range": ({"dtype": "uint8", "values": [256] * 6}, "element is out of range"),
    "negative": ({"dtype": "uint8", "values": [-1] * 6}, "element is out of range"),
    "too large for a float": ({"values": [10**400] * 6}, "element is out of range"),
    "too large for this float": ({"dtype": "float16", "values": [1e5] * 6}, "element is out of range"),
    "twice": ({"data": DATA, "values": [0] * 6}, "says twice what it holds"),
    "data and transform": ({"data": DATA, "transform": [{"op": "reshape", "shape": [2, 3]}]}, "says twice"),
    "huge": ({"shape": [2**61, 2**61]}, "too large for any memory"),
}


@pytest.mark.parametrize("fault", CONSTANT_FAULTS)
def test_a_constant_that_is_none_is_an_error_with_its_name(fault: str) -> None:
    fields, problem = CONSTANT_FAULTS[fault]
    with pytest.raises(InputError, match=problem) as caught:
        read_model(with_constant(**fields))
    assert "constant 'k'" in caught.value.where


# --- attributes ------------------------------------------------------------------------------------------------------

ATTRIBUTES = {
    "int": helper.make_attribute("a", 3),
    "large int": helper.make_attribute("a", -(2**63)),
    "float": helper.make_attribute("a", 0.1),
    "whole float": helper.make_attribute("a", 2.0),
    "tiny float": helper.make_attribute("a", float(np.float32(1e-45))),
    "nan": helper.make_attribute("a", float("nan")),
    "string": helper.make_attribute("a", "ä"),
    "empty string": helper.make_attribute("a", ""),
    "bytes": helper.make_attribute("a", b"\xff\x00"),
    "ints": helper.make_attribute("a", [1, -2]),
    "floats": helper.make_attribute("a", [1.0, 0.1]),
    "floats, some infinite": helper.make_attribute("a", [1.0, float("-inf")]),
    "strings": helper.make_attribute("a", ["a", ""]),
    "no ints": helper.make_attribute("a", [], attr_type=onnx.AttributeProto.INTS),
    "no floats": helper.make_attribute("a", [], attr_type=onnx.AttributeProto.FLOATS),
    "no strings": helper.make_attribute("a", [], attr_type=onnx.AttributeProto.STRINGS),
    "tensor": helper.make_attribute("a", onnx.numpy_helper.from_array(np.array([1.5, 2], np.float16), "t")),
    "scalar": helper.make_attribute("a", onnx.numpy_helper.from_array(np.array(7, np.int64))),
    "tensors": helper.make_attribute("a", [onnx.numpy_helper.from_array(np.array([1], np.int8))] * 2),
    "type": helper.make_attribute("a", helper.make_tensor_type_proto(TensorProto.FLOAT, [2, "N", None])),
    "types": helper.make_attribute(
        "a", [helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, None))] * 2
    ),
}


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_attributes_of_every_type_survive_json(kind: str) -> None:
    source = parse("g (float[2] x) => (float[2] y) { y = mine.Odd (x) }")
    source.graph.node[0].attribute.append(ATTRIBUTES[kind])
    again = to_proto(through_json(read_model(source))).graph.node[0].attribute[0]
    assert again.SerializeToString(deterministic=True) == ATTRIBUTES[kind].SerializeToString(deterministic=True)


def test_plain_values_are_read_as_they_look_and_written_as_short_as_they_are() -> None:
    attributes = {"a": 1, "b": 1.0, "c": 0.1, "d": "s", "e": [1, 2], "f": [1.0, 0.1], "g": ["s"]}
    written = to_json(read_model(odd(**attributes)))["nodes"][0]["attributes"]
    assert json.dumps(written) == json.dumps(attributes)


def test_integers_are_floats_where_the_operator_wants_floats() -> None:
    node = {"op": "LeakyRelu", "inputs": ["x"], "outputs": ["y"], "attributes": {"alpha": 1}}
    assert read_model(graph(node)).graph[0].attributes["alpha"].type == ir.AttributeType.FLOAT


def test_an_empty_list_is_of_the_operators_type() -> None:
    node = {"op": "Constant", "inputs": [], "outputs": ["y"], "attributes": {"value_floats": []}}
    assert read_model(graph(node)).graph[0].attributes["value_floats"].type == ir.AttributeType.FLOATS


ATTRIBUTE_FAULTS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "type is not evident"),
    "truth": (True, "type is not evident"),
    "a mixture": ([1, "a"], "type is not evident"),
    "nested lists": ([[1]], "type is not evident"),
    "an empty list": ([], "an empty list shows no type"),
    "an untyped object": ({"value": 1}, "type is not given"),
    "an unknown type": ({"type": "complex", "value": 1}, "type is not given"),
    "a type of no name": ({"type": [1], "value": 1}, "type is not given"),
    "a surplus field": ({"type": "int", "value": 1, "more": 2}, "type is not given"),
    "another type": ({"type": "int", "value": "a"}, "an attribute has the wrong type"),
    "an integer too large": ({"type": "int", "value": 2**63}, "an attribute has the wrong type"),
    "no list": ({"type": "ints", "value": 1}, "an attribute is no list"),
    "no number": ({"type": "float", "value": "one"}, "not a number"),
    "no base64": ({"type": "string", "base64": "%"}, "not base64"),
    "no tensor": ({"type": "tensor", "value": {"dtype": "float"}}, "not graph JSON"),
    "no graph": ({"type": "graph", "value": {}}, "not graph JSON"),
    "no type": ({"type": "type", "value": {"dtype": "floaty"}}, "unknown dtype"),
    "no shape": ({"type": "type", "value": {"dtype": "float", "shape": 3}}, "not graph JSON"),
}


@pytest.mark.parametrize("fault", ATTRIBUTE_FAULTS)
def test_an_attribute_that_is_none_is_an_error_with_its_name(fault: str) -> None:
    value, problem = ATTRIBUTE_FAULTS[fault]
    with pytest.raises(InputError, match=problem) as caught:
        read_model(odd(alpha=value))
    assert "attribute 'alpha'" in caught.value.where


# --- what is no graph JSON -------------------------------------------------------------------------------------------

SCHEMA_FAULTS: dict[str, tuple[Json, str, str]] = {
    "no opset": ({"opset": None}, "opset", "integer"),
    "text for a number": ({"opset": "20"}, "opset", "integer"),
    "another version": ({"version": 2}, "version", "1"),
    "a surplus field": ({"weights": []}, "weights", "no such field"),
    "a graph of nothing": ({"nodes": {}}, "nodes", "list"),
    "a node without an operator": ({"nodes": [{"outputs": ["y"]}]}, "nodes[0].op", "this field"),
    "a number for a name": (
        {"nodes": [{"op": "Relu", "inputs": [3], "outputs": ["y"]}]},
        "nodes[0].inputs[0]",
        "string",
    ),
    "a negative extent": ({"inputs": [{"name": "x", "dtype": "float", "shape": [-1]}]}, "inputs[0].shape[0]", "0"),
    "a fraction of an extent": (
        {"inputs": [{"name": "x", "dtype": "float", "shape": [1.5]}]},
        "inputs[0].shape[0]",
        "",
    ),
    "an unknown step": (
        {"constants": [{"name": "k", "dtype": "float", "shape": [1], "transform": [{"op": "flip"}]}]},
        "constants[0].transform[0]",
        "transpose",
    ),
}


@pytest.mark.parametrize("fault", SCHEMA_FAULTS)
def test_what_does_not_fit_the_schema_is_an_error_with_its_path(fault: str) -> None:
    fields, path, expected = SCHEMA_FAULTS[fault]
    with pytest.raises(InputError, match="not graph JSON, version 1") as caught:
        read_model(graph(**fields))
    assert path in caught.value.where
    assert expected in caught.value.expected


def test_json_is_checked_like_any_other_graph() -> None:
    for nodes, problem in (
        ([{"op": "Relu", "inputs": ["gone"], "outputs": ["y"]}], "an operand does not exist"),
        ([{"op": "Relu", "inputs": ["y"], "outputs": ["y"]}], "the graph has a cycle"),
        ([{"op": "Relu", "inputs": ["x"], "outputs": ["x"]}], "a name is used twice"),
        ([{"op": "Transpose", "inputs": ["x"], "outputs": ["y"], "attributes": {"perm": [0]}}], "contradict"),
    ):
        with pytest.raises(InputError, match=problem):
            read_model(graph(*nodes))


def test_texts_that_are_no_unicode_are_refused() -> None:
    with pytest.raises(InputError, match="not Unicode"):
        read_model(graph(name="\ud800"))


def test_subgraphs_nested_without_end_are_refused() -> None:
    body: Json = graph()
    del body["opset"]
    for _ in range(500):
        attributes = {"body": {"type": "graph", "value": body}}
        node = {"op": "Odd", "domain": "mine", "inputs": ["x"], "outputs": ["y"], "attributes": attributes}
        body = {"outputs": [{"name": "y"}], "nodes": [node]}
    with pytest.raises(InputError, match="nested too deep"):
        read_model(graph(**body))


SEEDS = [to_json(read_model(parse(text))) for text in GRAPHS.values()]
LEAVES = st.sampled_from(
    [None, True, 0, 1, -1, 2**40, 2**70, 1.5, float("inf"), "", "x", "a", "\ud800", "float", [], {}, [[]], [1], ["a"]]
) | st.builds(
    lambda kind, value: {"type": kind, "value": value}, st.sampled_from(["ints", "graph", "tensor"]), st.none()
)


def _places(part: Any) -> list[tuple[Any, Any]]:
    keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
    return [place for key in keys for place in [(part, key), *_places(part[key])]]


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0), st.none() | LEAVES), min_size=1, max_size=3))
def test_damaged_json_is_a_model_or_one_clear_error(seed: Json, changes: list[tuple[int, Any]]) -> None:
    source = copy.deepcopy(seed)
    for number, leaf in changes:
        places = _places(source)
        if places:
            part, key = places[number % len(places)]
            part[key] = leaf
    try:
        model = read_model(source, external_data=False)
    except RelayoutError:
        return
    assert same(through_json(model), through_json(through_json(model)))
