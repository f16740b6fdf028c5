"""Nodes without the rest of their graph: onnx's inference of their shapes, and its reference evaluator's results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from relayout.model.proto_graphs import graphs_inside, opset_of, static_shape


def evaluated_alone(
    nodes: Iterable[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    wanted: Iterable[str],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> list[np.ndarray]:
    """The `wanted` values that nodes, in topological order, compute from these arrays by name. May raise any error."""
    from onnx.reference import ReferenceEvaluator  # slow to import

    graph = onnx.GraphProto(name="alone", node=nodes)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in feeds)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    # Of a node alone the evaluator may take the newest version, which has no such attribute: Squeeze's axes.
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    return [np.asarray(result) for result in ReferenceEvaluator(model).run(None, dict(feeds))]


def inferred_alone(
    node: onnx.NodeProto,
    shapes: Mapping[str, tuple[int, ...]],
    kinds: Mapping[str, int],
    known: Mapping[str, np.ndarray],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, tuple[int, ...]]:
    """The shapes of results, by name, that these shapes, types and values of the operands determine in full, at the
    versions of these operator sets.

    Empty where a shape or an element type of an operand is missing, and for a node that has graphs, contradicts itself,
    or has an operator that ONNX does not define. `node` is in ONNX's domain."""
    names = {name for name in node.input if name}
    version = opset_of(opsets, 0)
    if not version or not names <= shapes.keys() & kinds.keys() or graphs_inside([node]):
        return {}
    types = {name: onnx.helper.make_tensor_type_proto(kinds[name], shapes[name]) for name in names}
    data = {name: numpy_helper.from_array(known[name], name) for name in names if name in known}
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=list(opsets))
    except Exception:  # the inference of the whole graph says what contradicts itself, and where
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for name, kind in inferred.items():
        shape = static_shape(kind)
        if shape is not None and min(shape, default=0) >= 0:
            found[name] = shape
    return found
