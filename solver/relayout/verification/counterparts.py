"""Which node and which value of the original a node and a value of the model stand for, and what a value depends on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.verification.subgraph_values import graphs_of, nesting_of, walk

__all__ = ["COPY", "VIEWS", "ancestors", "by_name", "paired_graphs", "paired_nodes", "source_name"]

COPY = re.compile(r"_laid(_\d+)?$")
"""The end of the name of a copy in another format."""

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose result has the elements of their first operand."""


def by_name(model: ir.Model) -> dict[str, ir.Node]:
    """The nodes by their own names, where these are unique."""
    nodes = list(walk(model.graph))
    counts = Counter(node.name for node in nodes)
    return {str(node.name): node for node in nodes if node.name and counts[node.name] == 1}


def source_name(value: ir.Value) -> str:
    """The name in the original of the value that this one stands for."""
    return value.metadata_props.get(SOURCE_KEY) or str(value.name)


def paired_nodes(model: ir.Model, original: ir.Model, graphs: Mapping[ir.Graph, ir.Graph]) -> dict[ir.Node, ir.Node]:
    """The original's node that each node of the model stands for: of its name, or else with its first result in the
    graph that its own stands for (`graphs`)."""
    named, own = by_name(original), by_name(model)
    made = {(node.graph, value.name): node for node in walk(original.graph) for value in node.outputs}
    pairs: dict[ir.Node, ir.Node] = {}
    for node in walk(model.graph):
        graph = node.graph and graphs.get(node.graph)
        alike = made.get((graph, source_name(node.outputs[0]))) if node.outputs else None
        other = named.get(node.name or "") if own.get(node.name or "") is node else None
        if (other := other or alike) is not None:
            pairs[node] = other
    return pairs


def paired_graphs(model: ir.Model, original: ir.Model) -> dict[ir.Graph, ir.Graph]:
    """The original's graph that each graph of the model stands for, those inside nodes too.

    Two branches may use one name for different values, so a name says what it stands for only in such a pair. The nodes
    around two graphs have the same first result in a pair of their own, or one that the original makes of the other's
    by view ops, or the same name.
    """
    made = {(node.graph, value.name): node for node in walk(original.graph) for value in node.outputs}
    named = by_name(original)
    pairs = {model.graph: original.graph}
    for node in nesting_of(model.graph):
        result = source_name(node.outputs[0]) if node.outputs else ""
        other = made.get((node.graph and pairs.get(node.graph), result))
        # The node makes the result of a view op that is gone.
        while other is not None and other.op_type in VIEWS and (read := other.inputs[0]) is not None:
            other = read.producer()
        if other is None or other.op_type != node.op_type:
            other = named.get(node.name or "")
        if other is not None and other.op_type == node.op_type:
            theirs = _bodies(other)
            pairs.update((body, theirs[name]) for name, body in _bodies(node).items() if name in theirs)
    return pairs


def _bodies(node: ir.Node) -> dict[str, ir.Graph]:
    """The graphs inside a node by the names of its attributes."""
    graphs = [each for each in node.attributes.values() if each.type is ir.AttributeType.GRAPH and not each.is_ref()]
    return {each.name: each.as_graph() for each in graphs}


def ancestors(values: Iterable[ir.Value]) -> dict[ir.Value, None]:
    """These values and all that they are computed from, by graphs inside nodes too."""
    found = dict.fromkeys(values)
    pending = list(found)
    while pending:
        node = pending.pop().producer()
        if node is None:
            continue
        bodies = graphs_of(node)
        inner = [read for body in bodies for each in walk(body) for read in each.inputs]
        for read in (*node.inputs, *inner, *(result for body in bodies for result in body.outputs)):
            if read is not None and read not in found:
                found[read] = None
                pending.append(read)
    return found
