"""Shapes of the states of Loops whose bodies declare none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import assert_same_numbers

from relayout import legalize, read_model
from relayout.ops import nested_graphs

ONE_STATE = """<ir_version: 9, opset_import: ["" : 18]>
    net (float[2,16,16,8] x, int64 k) => (float[2,16,16,8] y) <bool t = {1}> {
        a = Relu (x)
        y = Loop <body = body (int64 i, bool c, s) => (bool co, so) {
            co = Identity (c)   first = Transpose <perm = [0,3,1,2]> (s)   made = Conv <pads = [1,1,1,1]> (first, w)
            last = Transpose <perm = [0,2,3,1]> (made)   so = Add (last, a) }> (k, t, a) }"""
NESTED = """<ir_version: 9, opset_import: ["" : 18]>
    net (float[n,4] x, int64 k) => (float[?,4] y) <bool t = {1}> {
        y = Loop <body = outer (int64 i, bool c, s) => (bool co, so) {
            co = Identity (c)
            so = Loop <body = inner (int64 j, bool d, r) => (bool do, ro) { do = Identity (d)   ro = Exp (r) }>
                (k, t, s)
        }> (k, t, x) }"""
GROWING = """<ir_version: 9, opset_import: ["" : 18]>
    net (float[1,4] x, int64 k) => (float[?,4] y) <bool t = {1}> {
        y = Loop <body = body (int64 i, bool c, s) => (bool co, so) {
            co = Identity (c)   so = Concat <axis = 0> (s, x) }> (k, t, x) }"""
SWAPPING = """<ir_version: 9, opset_import: ["" : 18]>
    net (float[3,4] x, float[5,4] z, int64 k) => (float[?,?] y, float[?,?] u) <bool t = {1}> {
        y, u = Loop <body = body (int64 i, bool c, p, q) => (bool co, po, qo) {
            co = Identity (c)   po = Neg (q)   qo = Exp (p) }> (k, t, x, z) }"""


def parsed(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for graph in [model.graph, *inner_graphs(model.graph)]:
        for value in (*graph.input, *graph.output):
            if not value.type.HasField("tensor_type"):
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    if "w)" in text:
        kernel = np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32) / 10
        model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "w"))
    return model


def inner_graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [each for inner in found for each in (inner, *inner_graphs(inner))]


def shapes_in_bodies(model: ir.Model) -> Mapping[str | None, Sequence[int | str | None] | None]:
    return {
        value.name: None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        for graph in nested_graphs(model.graph)
        if graph is not model.graph
        for value in (*graph.inputs[2:], *graph.outputs[1:])
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE_STATE, {"s": [2, 16, 16, 8], "so": [2, 16, 16, 8]}),
        (NESTED, {"s": ["n", 4], "so": ["n", 4], "r": ["n", 4], "ro": ["n", 4]}),
    ],
)
def test_a_state_that_the_body_keeps_has_the_shape_of_the_initial_one(
    text: str, expected: Mapping[str, Sequence[int | str]]
) -> None:
    assert shapes_in_bodies(read_model(parsed(text))) == expected


@pytest.mark.parametrize("text", [GROWING, SWAPPING])
def test_a_dim_that_a_body_changes_is_open_beside_one_that_it_keeps(text: str) -> None:
    for shape in shapes_in_bodies(read_model(parsed(text))).values():
        assert shape is not None
        assert not isinstance(shape[0], int)
        assert shape[1] == 4


@pytest.mark.parametrize("backend", ["nhwc", "onnx", "xla-cpu"])
def test_a_legal_model_of_such_a_loop_has_no_cheaper_one(backend: str) -> None:
    model = parsed(ONE_STATE)
    legal, report = legalize(model, backend)
    assert report.sizes == {}
    again, second = legalize(legal, backend)
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    image = np.random.default_rng(0).standard_normal((2, 16, 16, 8)).astype(np.float32)
    assert_same_numbers(model, legal, {"x": image, "k": np.array(3)})
