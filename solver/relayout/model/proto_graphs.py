"""The graphs and nodes inside the nodes of a protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

__all__ = ["graphs_in", "graphs_inside", "nodes_inside", "subgraphs_of"]


def graphs_in(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    """The graphs in an attribute."""
    kind = attribute.type
    if kind == onnx.AttributeProto.GRAPH and attribute.HasField("g"):
        return (attribute.g,)
    graphs: Sequence[onnx.GraphProto] = attribute.graphs if kind == onnx.AttributeProto.GRAPHS else ()
    return graphs


def graphs_inside(nodes: Iterable[onnx.NodeProto]) -> list[onnx.GraphProto]:
    """The graphs in the attributes of these nodes, without those inside the graphs."""
    return [graph for node in nodes for attribute in node.attribute for graph in graphs_in(attribute)]


def subgraphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and the graphs in its nodes' attributes, at every depth."""
    yield graph
    for inner in graphs_inside(graph.node):
        yield from subgraphs_of(inner)


def nodes_inside(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes and those in graphs inside them, at every depth."""
    for node in nodes:
        yield node
        for graph in graphs_inside([node]):
            yield from nodes_inside(graph.node)
