"""The original that the verifier reads, and which of its graphs it takes a graph inside a node for."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from relayout import Backend, Implementation, Layout, legalize
from relayout.backend.loading import load_backend
from relayout.model.io import read_model
from relayout.verification.counterparts import Counterparts, Original
from relayout.verification.model_index import ModelIndex
from relayout.verification.operator_facts import declared_facts
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
    pairs = Counterparts(ModelIndex(model), ModelIndex(original)).graphs
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
        "no annotated order leads from the source's shape to the value's (a)",
    )


class Pools(Backend):
    """com.acme.Pool works on data in `layout`."""

    name = "pools"

    def __init__(self, layout: str) -> None:
        self.layout = Layout.parse(layout)

    def operator_layouts(self, node: ir.Node) -> Implementation | None:
        return Implementation((self.layout,), (self.layout,))


POOL = """<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]> net (float[1,8,9,3] x) => (float[1,8,9,3] y) {
    y = com.acme.Pool (x)
}"""


def test_an_original_is_read_once_for_all_models_and_each_has_the_findings_that_it_has_alone() -> None:
    source = onnx.parser.parse_model(TURNED)
    legal = ir.from_proto(legalize(source, "onnx")[0])
    wrong = legal.clone()
    (made,) = (node.outputs[0] for node in wrong.graph.all_nodes() if node.op_type == "Relu")
    del made.metadata_props["relayout.order"]
    shared = Original(source)
    for model in (legal, wrong, legal):
        assert verify(model, "onnx", against=shared) == verify(model, "onnx", against=source)
    assert shared.index_for(load_backend("onnx")) is shared.index_for(load_backend("nhwc"))


def test_an_original_with_operators_of_a_backend_has_the_layouts_of_the_backend_that_is_asked() -> None:
    shared = Original(onnx.parser.parse_model(POOL))
    indices = [shared.index_for(Pools(layout)) for layout in ("NHWC", "NCHW")]
    facts = [declared_facts(node) for index in indices for node in index.nodes]
    assert [str(each.declared.inputs[0]) for each in facts if each and each.declared] == ["NHWC", "NCHW"]


def test_an_original_that_is_read_already_is_not_read_again() -> None:
    source = onnx.parser.parse_model(TURNED)
    legal = legalize(source, "onnx")[0]
    read = read_model(source)
    shared = Original(source, read)
    assert shared.index_for(load_backend("onnx")).model is read
    assert verify(legal, "onnx", against=shared) == verify(legal, "onnx", against=source)
