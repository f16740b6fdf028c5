"""Operators read the same axes as in the original, which is found without a run and without a difference of shapes."""

from __future__ import annotations

import onnx.parser
import pytest

from relayout import legalize
from relayout.verification.verifier import verify

READERS = {
    "Softmax": "y = Relu ({0}) z = Softmax <axis = 1> (y)",
    "MatMul": "y = Relu ({0}) z = MatMul (y, w)",
    "MatMul alone": "z = MatMul ({0}, k)",
    "Add": "y = Relu ({0}) z = Add (y, w)",
    "CumSum": "y = Relu ({0}) z = CumSum (y, o)",
    "CumProd": "y = Relu ({0}) z = CumProd (y, o)",
    "ReduceMean": "y = Relu ({0}) m = ReduceMean (y, axes) z = Add (m, w)",
    "output": "z = Relu ({0})",
}


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("reader", READERS)
def test_a_transpose_of_a_square_is_found_whether_or_not_nodes_have_names(reader: str, is_named: bool) -> None:
    source, model = (square_model(text, is_named) for text in (READERS[reader].format("x"), TRANSPOSED[reader]))
    assert verify(source, "onnx", against=source, run=False).findings == ()
    assert not verify(model, "onnx", against=source, run=False).passed


TRANSPOSED = {name: "t = Transpose <perm = [1, 0]> (x) " + text.format("t") for name, text in READERS.items()}


def square_model(nodes: str, is_named: bool) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 26]> g (float[2,2] x, float[2,2] w) => (float[2,2] z)
            <float[2,2] k = {{1, 2, 3, 4}}, int64 o = {{1}}, int64[1] axes = {{1}}> {{ {nodes} }}"""
    )
    for node in model.graph.node if is_named else ():
        node.name = f"makes {node.output[0]}"
    return model


@pytest.mark.parametrize("operator", ["CumSum", "CumProd"])
def test_the_number_of_an_axis_changes_with_its_place(operator: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 26]> g (float[2,3,4] x) => (float[2,3,4] y) <int64 axis = {{2}}> {{
            t = Transpose <perm = [0,2,1]> (x)  c = {operator} (t, axis)  y = Transpose <perm = [0,2,1]> (c) }}"""
    )
    legal, _ = legalize(model)
    assert [node.op_type for node in legal.graph.node] == [operator]
    assert verify(legal, "onnx", against=model, run=False).passed


def test_scales_without_a_number_are_of_no_axis() -> None:
    model = onnx.parser.parse_model("""<ir_version: 7, opset_import: ["" : 11]> g (float[1,5,4] x) => (float[1,6,1] y)
        <float[0] none = {}, int64[3] sizes = {1, 6, 6}> {
            t = Transpose <perm = [0, 2, 1]> (x) r = Resize <mode = "nearest"> (t, none, none, sizes)
            u = Transpose <perm = [0, 2, 1]> (r) y = GlobalAveragePool (u) }""")
    legal, _ = legalize(model)
    assert [node.op_type for node in legal.graph.node] == ["Resize", "GlobalAveragePool"]
    assert verify(legal, "onnx", against=model, run=False).passed
