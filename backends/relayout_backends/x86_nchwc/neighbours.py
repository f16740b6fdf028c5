"""Who makes a value and who reads it, once the model is written: what only says anew how data lies is gone by then.

A price that looked at the nodes between would be another one for the legal model.
"""

from __future__ import annotations

import onnx_ir as ir

from relayout.model.constants import known_shape

__all__ = ["maker", "readers"]

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
    """The node that computes what `value` holds; None where that is fed or stored."""
    node = value.producer() if value is not None else None
    while node is not None and _moves(node):
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    return node


def readers(value: ir.Value) -> list[ir.Node | None]:
    """The nodes that compute with what `value` holds, each as often as it reads it; None stands for an output of the
    graph. A shape that is known is asked of nobody."""
    found: list[ir.Node | None] = []
    pending = [value]
    while pending:
        current = pending.pop()
        found += [None] if current.is_graph_output() else []
        for node, index in current.uses():
            if _moves(node) and index == 0:
                pending.append(node.outputs[0])
            elif _moves(node) or known_shape(node) is None:
                found.append(node)
    return found


def _moves(node: ir.Node) -> bool:
    return node.op_type in _MOVES and node.domain in ("", "ai.onnx", "relayout")
