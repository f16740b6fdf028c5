"""Ranks that ONNX's shape inference does not infer, but the operator table does.

A value without a rank has no memory format, so its neighbours would be pinned needlessly. The extents remain unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from relayout.ops import Fixed, Free, Relabel, all_nodes, extents_of, graphs_of, rule_of
from relayout.ops.operand_roles import OTHER, input_role, result_role

__all__ = ["complete_ranks", "drop_untyped_ranks"]


def complete_ranks(graph: ir.Graph, opsets: Mapping[str, int]) -> None:
    """Set the ranks that rules of operators infer, for every value of the graph and its subgraphs."""
    known = dict(opsets)
    for node in graph:
        if [value for value in (*node.inputs, *node.outputs) if value is not None and value.shape is None]:
            _complete_operands(node)
            rule = rule_of(node, known)
            if isinstance(rule, Relabel):
                _complete_view(node, rule)
        else:
            rule = None
        for inner in graphs_of(node):
            complete_ranks(inner, opsets)
        if isinstance(rule, Free | Fixed):
            for axes, value in zip(rule.outputs, node.outputs, strict=False):
                if axes is not None and value.shape is None:
                    value.shape = ir.Shape([None] * len(axes))


def drop_untyped_ranks(model: ir.Model) -> None:
    """Undo the completion where a value has no type: ONNX cannot store a shape without one."""
    for node in all_nodes(model.graph):
        for value in node.outputs:
            if value.type is None:
                value.shape = None


def _complete_operands(node: ir.Node) -> None:
    """Give the data and weights of an operator, which are of one rank, the rank of those that have a shape."""
    inputs = [value for n, value in enumerate(node.inputs) if value is not None and input_role(node, n) != OTHER]
    values = [*inputs, *(value for n, value in enumerate(node.outputs) if result_role(node, n) != OTHER)]
    ranks = {len(value.shape) for value in values if value.shape is not None}
    if len(ranks) != 1:
        return
    for value in values:
        # A value of another graph may never be read by this node.
        if value.shape is None and value.dtype is not None and value.graph is node.graph:
            value.shape = ir.Shape([None] * min(ranks))


def _complete_view(node: ir.Node, rule: Relabel) -> None:
    """Give a view op's result its shape where its axes are whole axes of the input, or new ones."""
    source, result = node.inputs[0], node.outputs[0]
    extents = extents_of(source) if source is not None else None
    if result.shape is None and extents is not None and all(len(group) < 2 for group in rule.axes):
        result.shape = ir.Shape([extents[group[0].axis] if group else 1 for group in rule.axes])
