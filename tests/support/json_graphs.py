"""Small graphs in JSON, and the models read from them."""

from __future__ import annotations

import json
from typing import Any

import onnx_ir as ir

from relayout.model.io import read_model, to_json

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


def through_json(model: ir.Model) -> ir.Model:
    return read_model(json.loads(json.dumps(to_json(model), allow_nan=False)))
