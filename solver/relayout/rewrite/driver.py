"""The rewrite of a model by a plan: each node, the new constants, and the elimination of dead code."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.backend.noted_costs import note_cost, noted_cost
from relayout.formulate.plan import Plan
from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.model.dims.forced_dims import sized, sizes_of_all_runs
from relayout.model.dims.output_dims import noted_names
from relayout.ops import all_nodes, graphs_of, is_read
from relayout.rewrite.annotations import keep_notes
from relayout.rewrite.boundary import enter_inputs, leave_outputs
from relayout.rewrite.context import RewriteContext, Written
from relayout.rewrite.devices import assign_devices
from relayout.rewrite.nodes import write


def rewrite(model: ir.Model, backend: Backend, plan: Plan) -> Written:
    """Rewrite the model by its plan, in place. Returns the nodes that its parts became.

    The model is not copied: cloning one of 10,000 nodes takes as long as this whole rewrite. The public entry functions
    parse their own model and do not change their argument.
    """
    sizes = sizes_of_all_runs(model)
    declared = [(value.shape, noted_names(value)) for value in model.graph.outputs]
    context = RewriteContext(model, backend, plan)
    enter_inputs(context)
    for node in list(model.graph):
        write(context, node)
    leave_outputs(context, declared)
    _clean_up(context)
    _enter_sizes(model.graph, sizes)
    if backend.devices():
        assign_devices(context)
    return context.written


def _clean_up(context: RewriteContext) -> None:
    """Register the new constants, and drop unused nodes and constants."""
    _write_known(context)
    for value in context.emitter.constants:
        context.constants.graph_of.get(value, context.graph).register_initializer(value)
    sweep(context.graph)
    for source, copies in context.constants.replaced.items():
        # A weight used in a single layout keeps its name.
        graph = copies[0].graph
        is_dropped = graph is not None and source.producer() is None and source.name not in graph.initializers
        if is_dropped and source.name and len(copies) == 1 and copies[0].is_initializer():
            copies[0].name = source.name
            copies[0].metadata_props.pop(SOURCE_KEY, None)
            keep_notes(copies[0], source)
            if copies[0].const_value is not None:
                copies[0].const_value.name = source.name


def _write_known(context: RewriteContext) -> None:
    """Replace each node of a known result by a constant: the tensor that it asks may be elided, or relaid."""
    for node, array in context.tensors.known.items():
        result = node.outputs[0]
        if not is_read(result):
            continue
        constant = context.emitter.constant(f"{result.name}_known", array)
        if node.graph is not None:
            context.constants.graph_of[constant] = node.graph
        if result.is_graph_output():
            # The output keeps its name.
            node.op_type = "Identity"
            node.attributes.clear()
            node.resize_inputs(1)
            node.replace_input_with(0, constant)
        else:
            ir.convenience.replace_all_uses_with(result, constant)


def _enter_sizes(graph: ir.Graph, sizes: Mapping[str, int]) -> None:
    """Give the results that are views of inputs the sizes to which Reshapes force dims of inputs: these may be gone.
    The costs noted on nodes are then for operands of these sizes."""
    shapes: dict[int, tuple[ir.Shape, ir.Shape]] = {}
    nodes = list(all_nodes(graph)) if sizes else []
    noted = [(node, cost) for node in nodes if (cost := noted_cost(node)) is not None]
    for node in nodes:
        for value in node.outputs:
            shape = value.shape
            if shape is None or shape.is_static():
                continue
            # Values of equal type share a shape.
            if id(shape) not in shapes:
                dims = [dim if isinstance(dim, int) or not dim.value else sized(dim.value, sizes) for dim in shape]
                shapes[id(shape)] = shape, ir.Shape(dims)
            value.shape = shapes[id(shape)][1]
    for node, cost in noted:
        note_cost([node], cost, is_told=True)


def sweep(graph: ir.Graph) -> None:
    """Drop unused nodes and initializers in the graph and its regions, in reverse order."""
    dead: list[ir.Node] = []
    for node in reversed(graph):
        if any(map(is_read, node.outputs)):
            for inner in graphs_of(node):
                sweep(inner)
        else:
            _disconnect(node)
            dead.append(node)
    graph.remove(dead)
    for name, value in list(graph.initializers.items()):
        if not is_read(value) and not value.is_graph_input():
            del graph.initializers[name]


def _disconnect(node: ir.Node) -> None:
    """Disconnect all inputs of a node and of the nodes in its regions."""
    for each in (node, *(inner for graph in graphs_of(node) for inner in graph.all_nodes())):
        for index in range(len(each.inputs)):
            each.replace_input_with(index, None)
