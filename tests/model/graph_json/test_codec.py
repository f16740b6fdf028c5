"""Graph JSON is read as a user writes it by hand, and invalid graphs are errors with a location."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from hypothesis import given
from hypothesis import strategies as st
from json_graphs import Json, graph, odd, through_json
from model_files import parse, same
from onnx.reference import ReferenceEvaluator

from relayout.errors import InputError, RelayoutError
from relayout.layout.metadata_keys import BOUNDARY_LAYOUT_KEY
from relayout.model.graph_json.schema import GraphJson
from relayout.model.io import read_model, to_json, to_proto

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


def test_a_nested_graph_without_outputs_survives_json() -> None:
    node = {"op": "Relu", "inputs": ["x"], "outputs": ["u"]}
    source = read_model(odd(g={"type": "graph", "value": {"nodes": [node], "outputs": []}}))
    assert same(through_json(source), source)


def test_the_metadata_of_the_model_survives_json() -> None:
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
    assert to_json(read_model(source))["inputs"][0]["shape"] == ["N", "x_dim_1", 0, 7]


def test_a_rank_may_be_unknown() -> None:
    model = read_model(graph(inputs=[{"name": "x", "dtype": "float"}]))
    assert model.graph.inputs[0].shape is None
    assert "shape" not in to_json(model)["inputs"][0]


def test_written_json_conforms_to_the_schema() -> None:
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
def test_a_boundary_layout_may_be_in_xlas_or_tvms_notation(layout: str) -> None:
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
def test_an_input_layout_must_be_valid_and_fit(layout: str, problem: str) -> None:
    for side in ("inputs", "outputs"):
        source = graph()
        source[side][0]["layout"] = layout
        with pytest.raises(InputError, match=problem) as caught:
            read_model(source)
        assert f"value '{source[side][0]['name']}'" in caught.value.where


def test_a_layout_inside_the_graph_is_refused() -> None:
    with pytest.raises(InputError, match="a layout of a value inside the graph"):
        read_model(graph(values=[{"name": "y", "layout": "NC"}]))


# --- what is no graph JSON -------------------------------------------------------------------------------------------

SCHEMA_FAULTS: dict[str, tuple[Json, str, str]] = {
    "no opset": ({"opset": None}, "opset", "integer"),
    "text for a number": ({"opset": "20"}, "opset", "integer"),
    "another version": ({"version": 2}, "version", "1"),
    "a surplus field": ({"weights": []}, "weights", "one of the fields constants, doc, "),
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
    "a list of elements as data": (
        {"constants": [{"name": "k", "dtype": "float", "shape": [2], "data": [1, 2]}]},
        "constants[0].data",
        "base64 of the elements; a list of elements goes into the field values",
    ),
    "an unknown step": (
        {"constants": [{"name": "k", "dtype": "float", "shape": [1], "transform": [{"op": "flip"}]}]},
        "constants[0].transform[0]",
        "transpose",
    ),
}


@pytest.mark.parametrize("fault", SCHEMA_FAULTS)
def test_json_that_does_not_fit_the_schema_is_an_error_with_its_path(fault: str) -> None:
    fields, path, expected = SCHEMA_FAULTS[fault]
    with pytest.raises(InputError, match="not graph JSON, version 1") as caught:
        read_model(graph(**fields))
    assert path in caught.value.where
    assert expected in caught.value.expected


def test_an_error_has_its_path_and_all_types_that_were_expected() -> None:
    source = graph()
    source["inputs"][0]["shape"][0] = ""
    with pytest.raises(InputError) as caught:
        read_model(source)
    assert caught.value.where == "graph JSON, inputs[0].shape[0]"
    assert caught.value.expected == "an integer, or a longer string"
    assert caught.value.found == '""'
    assert caught.value.hint == ""


def test_json_is_checked_like_any_other_graph() -> None:
    for nodes, problem in (
        ([{"op": "Relu", "inputs": ["gone"], "outputs": ["y"]}], "an operand does not exist"),
        ([{"op": "Relu", "inputs": ["y"], "outputs": ["y"]}], "the graph has a cycle"),
        ([{"op": "Relu", "inputs": ["x"], "outputs": ["x"]}], "a name is used twice"),
        ([{"op": "Transpose", "inputs": ["x"], "outputs": ["y"], "attributes": {"perm": [0]}}], "contradict"),
    ):
        with pytest.raises(InputError, match=problem):
            read_model(graph(*nodes))


def test_text_that_is_not_unicode_is_rejected() -> None:
    with pytest.raises(InputError, match="not Unicode"):
        read_model(graph(name="\ud800"))


def test_endlessly_nested_subgraphs_are_rejected() -> None:
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
            part[key] = copy.deepcopy(leaf)  # what is drawn twice must not come to hold itself
    try:
        model = read_model(source, external_data=False)
    except RelayoutError:
        return
    assert same(through_json(model), through_json(through_json(model)))


def test_nodes_share_the_json_of_an_attribute_only_where_the_caller_allows_it() -> None:
    net = Net()
    x = net.input("x", (1, 2, 4, 4))
    for _ in range(2):
        x = net.node("MaxPool", x, kernel_shape=[1, 1])
    net.output(x)
    model = read_model(net.model())
    first, second = (node["attributes"] for node in to_json(model, shares=True)["nodes"])
    assert first["kernel_shape"] is second["kernel_shape"]
    own = to_json(model)
    assert own == to_json(model, shares=True)
    own["nodes"][0]["attributes"]["kernel_shape"].append(7)
    assert own["nodes"][1]["attributes"]["kernel_shape"] == [1, 1]
    assert to_json(model)["nodes"][0]["attributes"]["kernel_shape"] == [1, 1]
