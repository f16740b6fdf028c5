"""What onnx's inference is shown in place of constants whose data it would miss.

A node that it does not know stands in for one whose data is absent. The graphs inside a node are lent the shapes, axes
and scales around them that they read, for inference does not look for the values of constants outside of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from relayout.model.tensor_types import is_absent

__all__ = ["LARGEST_KEPT", "carry_over", "graphs_in", "lend", "needs_stand_ins", "stand_in"]

LARGEST_KEPT = 1024
STAND_IN = "relayout.absent"


def needs_stand_ins(proto: onnx.ModelProto) -> bool:
    """Whether the model has a constant of which inference would read the data, and the data is not there."""
    return any(map(_stands_in, _constants(proto.graph)))


def stand_in(proto: onnx.ModelProto) -> None:
    """Let nodes of no known operator stand for such constants, in place."""
    _stand_in(proto.graph)
    proto.opset_import.add(domain=STAND_IN, version=1)


def _stands_in(tensor: onnx.TensorProto) -> bool:
    """Inference reads vectors of integers, and small ones of floats: shapes, axes, scales."""
    outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    if len(tensor.dims) > 1 or not (outside or is_absent(tensor)):
        return False
    return tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) or sum(tensor.dims) <= LARGEST_KEPT


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for subgraph in graphs_in(attribute):
                yield from _constants(subgraph)


def graphs_in(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    """The graphs that an attribute holds."""
    kind = attribute.type
    if kind == onnx.AttributeProto.GRAPH and attribute.HasField("g"):
        return (attribute.g,)
    graphs: Sequence[onnx.GraphProto] = attribute.graphs if kind == onnx.AttributeProto.GRAPHS else ()
    return graphs


def _stand_in(graph: onnx.GraphProto) -> None:
    inputs = {info.name for info in graph.input}
    declared = inputs | {info.name for info in graph.value_info}

    def declare(name: str, tensor: onnx.TensorProto) -> None:
        if name not in declared:
            graph.value_info.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))

    missing = [tensor for tensor in graph.initializer if _stands_in(tensor)]
    for tensor in missing:
        declare(tensor.name, tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t") and _stands_in(attribute.t):
                declare(node.output[0], attribute.t)
                node.domain = STAND_IN
            for subgraph in graphs_in(attribute):
                _stand_in(subgraph)
    for tensor in missing:
        if tensor.name not in inputs:
            graph.node.insert(0, onnx.helper.make_node("Initializer", [], [tensor.name], domain=STAND_IN))
        graph.initializer.remove(tensor)


def lend(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]) -> None:
    """Give the graphs inside `graph` copies of the shapes, axes and scales around them that they read: inference does
    not look for the values of constants outside of a graph."""
    fed, defined = {value.name for value in graph.input}, _defined(graph)
    here = {name: tensor for name, tensor in outer.items() if name not in defined}
    here |= {tensor.name: tensor for tensor in graph.initializer if _is_looked_at(tensor) and tensor.name not in fed}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t") and _is_looked_at(attribute.t):
                here[node.output[0]] = _named(attribute.t, node.output[0])
        for attribute in node.attribute:
            for inner in graphs_in(attribute):
                lend(inner, here)
                read = dict.fromkeys(name for each in inner.node for name in each.input)
                own = _defined(inner)
                inner.initializer.extend(here[name] for name in read if name in here and name not in own)


def _defined(graph: onnx.GraphProto) -> set[str]:
    """The names of a graph's own values."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return own.union(*(node.output for node in graph.node))


def _is_looked_at(tensor: onnx.TensorProto) -> bool:
    outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    return len(tensor.dims) <= 1 and sum(tensor.dims) <= LARGEST_KEPT and not (outside or is_absent(tensor))


def _named(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def carry_over(inferred: onnx.GraphProto, proto: onnx.GraphProto) -> None:
    """Take the inferred types over, graph by graph: sibling subgraphs may use the same names."""
    twins = [node for node in inferred.node if (node.domain, node.op_type) != (STAND_IN, "Initializer")]
    for node, twin in zip(proto.node, twins, strict=True):
        for attribute, other in zip(node.attribute, twin.attribute, strict=True):
            for subgraph, twin_graph in zip(graphs_in(attribute), graphs_in(other), strict=True):
                carry_over(twin_graph, subgraph)
    for field in ("value_info", "output"):
        proto.ClearField(field)
        getattr(proto, field).extend(getattr(inferred, field))
