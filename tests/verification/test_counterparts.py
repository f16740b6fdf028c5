"""Which graph of the original the verifier takes a graph inside a node for."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from relayout import legalize
from relayout.model.io import read_model
from relayout.verification.counterparts import paired_graphs
from relayout.verification.subgraph_values import graphs_of
from relayout.verification.verifier import verify

# No Transpose is left: the If makes the result of the last one, and each Relu that of the one behind it.
TURNED = """<ir_version: 10, opset_import: ["" : 20]> net (float[2,3,4] x, bool c) => (float[2,3,4] y) {
    v = If (c) <
        then_branch = one () => (float[2,4,3] a) { [n] r = Relu (x) a = Transpose <perm = [0, 2, 1]> (r) },
        else_branch = other () => (float[2,4,3] b) { [m] s = Abs (x) b = Transpose <perm = [0, 2, 1]> (s) }
    >
    y = Transpose <perm = [0, 2, 1]> (v)
}"""


def test_graphs_are_paired_where_their_node_makes_the_result_of_a_transpose_that_is_gone() -> None:
    source = onnx.parser.parse_model(TURNED)
    legal, _ = legalize(source, "onnx")
    model, original = read_model(legal), read_model(source)
    (node,) = (node for node in model.graph if node.op_type == "If")
    assert [value.name for value in node.outputs] == ["y"]
    pairs = paired_graphs(model, original)
    assert [pairs[graph].name for graph in graphs_of(node)] == [graph.name for graph in graphs_of(node)]
    assert verify(legal, "onnx", against=source).passed


def test_the_annotations_inside_such_a_node_are_checked() -> None:
    source = onnx.parser.parse_model(TURNED)
    legal = ir.from_proto(legalize(source, "onnx")[0])
    (made,) = (node.outputs[0] for node in legal.graph.all_nodes() if node.op_type == "Relu")
    del made.metadata_props["relayout.order"]
    (found,) = verify(legal, "onnx", against=source, static=True).findings
    assert (found.rule, found.message) == (
        "layout-annotation",
        "the order does not lead from the original's axes to the value's (a)",
    )
