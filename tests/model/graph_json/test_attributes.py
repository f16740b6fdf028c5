"""The attributes of graph JSON: plain values, and every type."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from json_graphs import graph, odd, through_json
from model_files import parse
from onnx import TensorProto, helper

from relayout.errors import InputError
from relayout.model.io import read_model, to_json, to_proto

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


def test_plain_values_are_read_and_written_as_plain_json() -> None:
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
