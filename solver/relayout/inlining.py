"""Local functions, replaced by their bodies.

onnx_ir's inliner puts what a body makes in place of the results of a call, under their names. Three things it leaves to
its caller: what the model says of a result goes with it; a result without a name takes the name from what the body
makes for it; and what a body hands on as it came is a value of the caller's, which would lose its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

__all__ = ["inline"]


def inline(model: ir.Model, which: Callable[[ir.Function], bool] = lambda function: True) -> None:
    """Replace the calls of these functions, inside of graphs and functions too, and remove them. What the model says of
    a result of a call stays with the value that takes its place."""
    from onnx_ir.passes.common import InlinePass

    bodies = {key: function for key, function in model.functions.items() if which(function)}
    for function in bodies.values():
        _hand_on_copies(function)
        _name_no_unread(function.all_nodes(), bodies)
    _name_no_unread(model.graph.all_nodes(), bodies)
    told = {
        (node.graph, value.name): dict(value.metadata_props)
        for node in model.graph.all_nodes()
        if node.op_identifier() in bodies
        for value in node.outputs
    }
    InlinePass(which)(model)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.metadata_props.update(told.get((node.graph, value.name), {}))
    for key in bodies:
        # Those that nobody calls are left.
        model.functions.pop(key, None)


def _hand_on_copies(function: ir.Function) -> None:
    """Let a result be no input."""
    for place, value in enumerate(function.outputs):
        if value.is_graph_input():
            copy = ir.node("Identity", [value])
            function.append(copy)
            function.outputs[place] = copy.outputs[0]


def _name_no_unread(nodes: Iterable[ir.Node], bodies: dict[ir.OperatorIdentifier, ir.Function]) -> None:
    """Let the results of calls that have no name have none, which is not the empty one."""
    for node in nodes:
        if node.op_identifier() in bodies:
            for value in node.outputs:
                value.name = value.name or None
