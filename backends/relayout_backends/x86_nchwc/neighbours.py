"""The producers and readers of values, without the view ops between.

View ops are gone in the written model, and the cost of a legal model must be that of its source.
"""

from __future__ import annotations

import onnx_ir as ir

from relayout.model.constants import known_result

_MOVES = frozenset(
    {
        "DepthToSpace",
        "Dropout",
        "Flatten",
        "Identity",
        "Reshape",
        "SpaceToDepth",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


def maker(value: ir.Value | None) -> ir.Node | None:
    """The node that computes the data of `value`; None where that is an input or a constant."""
    node = value.producer() if value is not None else None
    while node is not None and _moves(node):
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    return node


def readers(value: ir.Value) -> list[ir.Node | None]:
    """The nodes that compute with the data of `value`, each as often as it reads it; None is an output of the graph.

    A node that asks only for known extents does not count as a reader.
    """
    found: list[ir.Node | None] = []
    pending = [value]
    while pending:
        current = pending.pop()
        found += [None] if current.is_graph_output() else []
        for node, index in current.uses():
            if _moves(node) and index == 0:
                pending.append(node.outputs[0])
            elif _moves(node) or not _asks_for_known(node):
                found.append(node)
    return found


def _moves(node: ir.Node) -> bool:
    return node.op_type in _MOVES and node.domain in ("", "relayout")


def _asks_for_known(node: ir.Node) -> bool:
    """Whether the results of the node, or of all that read it, are known: the node is not in the legal model."""
    if known_result(node) is not None:
        return True
    if node.op_type != "Shape" or node.domain != "" or node.outputs[0].is_graph_output():
        return False
    return all(known_result(reader) is not None for reader, _ in node.outputs[0].uses())
