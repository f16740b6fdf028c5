"""A node with graphs inside it, and those graphs, each value in the format that was chosen for its way in or out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from relayout.candidates.alternatives import FreeLowering, NodeAlternatives, Port
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import RegionPort, graphs_of, read_at
from relayout.rewrite.boundary import give_output
from relayout.rewrite.constant_steps import input_dims
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.conversions import copies_after, copies_inside, make_copies
from relayout.rewrite.operand_dims import own_dims, port_dims, present
from relayout.rewrite.wiring import give, wire

__all__ = ["write_holder"]

Write = Callable[[RewriteContext, ir.Node], None]


def write_holder(context: RewriteContext, choice: NodeAlternatives, node: ir.Node, write: Write) -> None:
    """The node, and by `write` each node inside it."""
    passing = context.passing.get(node, [])
    wire(context, choice, node)
    for each in passing:
        for index, value, _ in _read(context, each, None):
            context.replace(node, index, value)
    context.place(node)
    for graph in graphs_of(node):
        with context.inside(graph):
            _write_graph(context, (choice, *passing), write)
    give(context, choice, node)
    for each in passing:
        _set_scanned(context, each, node)
        for region_port, port, format_, dims in _given(context, each):
            if region_port.graph is None:
                context.register(node.outputs[region_port.index], port.operand, format_, dims)
    for each in (choice, *passing):
        copies_after(context, node, each)


def _write_graph(context: RewriteContext, choices: tuple[NodeAlternatives, ...], write: Write) -> None:
    """The graph at hand; `choices` say what goes into it and comes out of it."""
    graph = context.graph
    for each in choices:
        for region_port, port, format_, dims in _given(context, each):
            if region_port.graph is graph:
                context.register(graph.inputs[region_port.index], port.operand, format_, dims)
                make_copies(context, port.operand.tensor, stem=context.stem(port.operand))
    copies_inside(context)
    context.place(None, front=True)
    for inner in list(graph):
        write(context, inner)
    done: set[ir.Value] = set()
    for each in choices:
        for place, value, read in _read(context, each, graph):
            give_output(context, place, value, done)
            context.place(None)
            if read is not None:
                own = own_dims(each, read, context.chosen[id(each)].form, each.rule(context.tensors))
                # Nothing that crosses the border of a graph is in a black box.
                context.annotate(graph.outputs[place], read.operand, present(own), ())


def _given(context: RewriteContext, choice: NodeAlternatives) -> Iterator[tuple[RegionPort, Port, MemoryFormat, Dims]]:
    """Everything that the choice gives, to whom, in which format and with which dimensions."""
    alternative = context.chosen[id(choice)]
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        if port.is_result:
            own = own_dims(choice, port, alternative.form, choice.rule(context.tensors))
            yield choice.region_port(port), port, format_, present(own)


def _read(context: RewriteContext, choice: NodeAlternatives, graph: ir.Graph | None) -> Iterator[tuple[int, ir.Value, Port | None]]:
    """What the choice reads of one graph inside the node, or of the node itself: at which place, and the value; a
    constant has no port."""
    alternative, rule = context.chosen[id(choice)], choice.rule(context.tensors)
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        if not port.is_result and choice.region_port(port).graph is graph:
            dims = port_dims(choice, port, alternative.form, rule)
            found = context.copies.read(port.operand.tensor, format_, dims, stem=context.stem(port.operand))
            yield choice.region_port(port).index, found.value, port
    if choice.region_edge is None or choice.node is None:
        return
    region_edge, form = choice.region_edge, alternative.form
    assert isinstance(form, FreeLowering)
    values = read_at(choice.node, region_edge.reads)
    for region_port, value, axes in zip(region_edge.reads, values, region_edge.rule.inputs, strict=True):
        if region_port.graph is graph and value is not None and axes is not None and context.tensors.is_constant(value):
            yield region_port.index, context.constants.laid(value, input_dims(region_edge.rule, axes, form.dims)), None


def _set_scanned(context: RewriteContext, choice: NodeAlternatives, node: ir.Node) -> None:
    """Say where the axis lies along which a Scan goes."""
    region_edge, form = choice.region_edge, context.chosen[id(choice)].form
    if region_edge is None or region_edge.scanned is None or region_edge.outer_axis is None or not isinstance(form, FreeLowering):
        return
    attribute, place, count = region_edge.scanned
    known = list(node.attributes.get_ints(attribute, (0,) * count) or ())
    axes = [*known[:place], form.axes.index(region_edge.outer_axis), *known[place + 1 :]]
    if axes != known:
        node.attributes[attribute] = ir.AttrInt64s(attribute, axes)
