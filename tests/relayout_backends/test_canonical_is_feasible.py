"""Operators of which Glow requires NHWC have a legal model whatever their attributes and types."""

from __future__ import annotations

import onnx
import pytest

from relayout.testing import SampleGraph, check_graph

BEFORE = '<ir_version: 10, opset_import: ["" : 18]> g'
CONV = "[conv] a = Conv (x, w)"
WEIGHT = "w = {1, 0, 2, 0, 1, 0, 0, 0, 1}"

MODELS = {
    "LayerNormalization between convolutions that name its axes differently": f"""{BEFORE} (float[2,3,4,5] x)
        => (float[2,3,4,5] a, float[3,1,4,2] y)
        <float[3,3,1,1] {WEIGHT}, float[1,5,1,1] v = {{1, 2, 0, 1, 3}}, float[5] s = {{1, 2, 3, 2, 1}}>
        {{ {CONV} b = LayerNormalization <axis = 3> (x, s) c = Transpose <perm = [1, 3, 2, 0]> (b)
        y = Conv (c, v) }}""",
    "LayerNormalization of an axis without a name": f"""{BEFORE} (float[3,2,5,4] x) => (float[2,3,5,4] y)
        <float[3,3,1,1] {WEIGHT}, float[4] s = {{1, 2, 3, 2}},
        float[4,4] v = {{1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 1, 0, 3, 0, 0, 1}}>
        {{ b = Transpose <perm = [1, 0, 2, 3]> (x) c = LayerNormalization <axis = 3> (b, s) d = MatMul (c, v)
        y = Conv (d, w) }}""",
    "ScatterElements that adds": f"""{BEFORE} (float[2,3,4,5] x, float[2,1,4,1] u) => (float[2,3,4,5] y)
        <float[3,3,1,1] {WEIGHT}, int64[2,1,4,1] i = {{0, 2, 1, 1, 0, 2, 2, 0}}>
        {{ {CONV} y = ScatterElements <axis = 1, reduction = "add"> (a, i, u) }}""",
    "LayerNormalization with its mean": f"""{BEFORE} (float[2,3,4,5] x, float[4,5] s)
        => (float[2,3,4,5] y, float[2,3,1,1] m, float[2,3,1,1] d) <float[3,3,1,1] {WEIGHT}>
        {{ {CONV} y, m, d = LayerNormalization <axis = 2> (a, s) }}""",
    "LayerNormalization of 16 bits": f"""{BEFORE} (float[2,3,4,5] x, float16[5] s) => (float16[2,3,4,5] y)
        <float[3,3,1,1] {WEIGHT}> {{ {CONV} b = Cast <to = 10> (a) y = LayerNormalization <axis = 3> (b, s) }}""",
    "ReduceProd of axes known at run time": f"""{BEFORE} (float[2,3,4,5] x, int64[1] axes) => (float[?,?,?,?] y)
        <float[3,3,1,1] {WEIGHT}> {{ {CONV} y = ReduceProd <keepdims = 1> (a, axes) }}""",
    "ReduceSumSquare of no axes": f"""{BEFORE} (float[2,3,4,5] x) => (float[2,3,4,5] y)
        <float[3,3,1,1] {WEIGHT}> {{ {CONV} y = ReduceSumSquare <noop_with_empty_axes = 1> (a) }}""",
    "Gather of channels and rows": f"""{BEFORE} (float[2,7,5] v, int64[3,4] i) => (float[2,3,4,5] y)
        <float[3,3,1,1] {WEIGHT}> {{ x = Gather <axis = 1> (v, i) {CONV} y = Relu (a) }}""",
    "Gather of all axes but the last": f"""{BEFORE} (float[7,5] v, int64[2,3,4] i) => (float[2,3,4,5] y)
        <float[3,3,1,1] {WEIGHT}> {{ x = Gather <axis = -2> (v, i) {CONV} y = Relu (a) }}""",
    "Gather of all axes": f"""{BEFORE} (float[7] v, int64[2,3,4,5] i) => (float[2,3,4,5] y)
        <float[3,3,1,1] {WEIGHT}> {{ x = Gather <axis = 0> (v, i) {CONV} y = Relu (a) }}""",
    "Gather of rows and columns": f"""{BEFORE} (float[2,3,7] v, int64[4,5] i) => (float[2,3,4,5] y)
        <float[3,3,1,1] {WEIGHT}> {{ x = Gather <axis = 2> (v, i) {CONV} y = Relu (a) }}""",
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["canonical", "opencl"])
def test_a_legal_model_exists_and_computes_the_same(name: str, backend: str) -> None:
    not_compared: dict[str, str] = {}
    graph = SampleGraph(name, onnx.parser.parse_model(MODELS[name]))
    assert check_graph(backend, graph, not_compared=not_compared) == []
    # No input that is drawn is an axis.
    assert ("run time" in name) or not_compared == {}
