"""Local functions, replaced by their bodies.

onnx_ir's inliner puts what a body makes in place of the results of a call, under their names. Four things it leaves to
its caller: what the model says of a result goes with it; a result without a name takes the name from what the body
makes for it; what a body hands on as it came is a value of the caller's, which would lose its own name; and what comes
with a body may have the name of a value in a graph that is inside a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

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
    results = {
        (node.graph, value.name): dict(value.metadata_props)
        for node in model.graph.all_nodes()
        if node.op_identifier() in bodies
        for value in node.outputs
    }
    own = set(_values(model.graph))
    InlinePass(which)(model)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if (node.graph, value.name) in results:
                value.metadata_props.update(results[node.graph, value.name])
                own.add(value)
    _name_apart(model.graph, own)
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


def _name_apart(graph: ir.Graph, own: Set[ir.Value]) -> None:
    """Let what is not the graph's `own` have names that nothing else has, wherever in the graph it is."""
    taken = {value.name for value in own}
    for value in dict.fromkeys(_values(graph)):
        if value in own or not value.name:
            continue
        stem, count = value.name, 1
        while value.name in taken:
            count += 1
            value.name = f"{stem}_{count}"
        taken.add(value.name)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value of the graph and of those inside it."""
    for each in (graph, *graph.subgraphs()):
        yield from each.inputs
        # A list: a new name is a new place among them.
        yield from list(each.initializers.values())
        for node in each:
            yield from node.outputs
