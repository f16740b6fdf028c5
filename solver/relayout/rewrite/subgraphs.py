"""A node with graphs inside it, and those graphs, each value in the format that was chosen for its way in or out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from relayout.candidates.alternatives import FreeForm, NodeChoice, Port
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Order
from relayout.ops import Spot, graphs_of, read_at
from relayout.rewrite.boundary import give_output
from relayout.rewrite.constant_steps import input_dims
from relayout.rewrite.context import Workshop
from relayout.rewrite.conversions import copies_after, copies_inside, make_copies
from relayout.rewrite.operand_dims import own_dims, port_dims, present
from relayout.rewrite.wiring import give, wire

__all__ = ["write_holder"]

Write = Callable[[Workshop, ir.Node], None]


def write_holder(shop: Workshop, choice: NodeChoice, node: ir.Node, write: Write) -> None:
    """The node, and by `write` each node inside it."""
    passing = shop.passing.get(node, [])
    wire(shop, choice, node)
    for each in passing:
        for index, value, _ in _read(shop, each, None):
            shop.replace(node, index, value)
    shop.place(node)
    for graph in graphs_of(node):
        with shop.inside(graph):
            _write_graph(shop, (choice, *passing), write)
    give(shop, choice, node)
    for each in passing:
        _set_scanned(shop, each, node)
        for spot, port, format_, dims in _given(shop, each):
            if spot.graph is None:
                shop.register(node.outputs[spot.index], port.operand, format_, dims)
    for each in (choice, *passing):
        copies_after(shop, node, each)


def _write_graph(shop: Workshop, choices: tuple[NodeChoice, ...], write: Write) -> None:
    """The graph at hand; `choices` say what goes into it and comes out of it."""
    graph = shop.graph
    for each in choices:
        for spot, port, format_, dims in _given(shop, each):
            if spot.graph is graph:
                shop.register(graph.inputs[spot.index], port.operand, format_, dims)
                make_copies(shop, port.operand.tensor, stem=shop.stem(port.operand))
    copies_inside(shop)
    shop.place(None, front=True)
    for inner in list(graph):
        write(shop, inner)
    done: set[ir.Value] = set()
    for each in choices:
        for place, value, read in _read(shop, each, graph):
            give_output(shop, place, value, done)
            shop.place(None)
            if read is not None:
                own = own_dims(each, read, shop.chosen[id(each)].form, each.rule(shop.tensors))
                # Nothing that crosses the border of a graph is in a black box.
                shop.annotate(graph.outputs[place], read.operand, present(own), ())


def _given(shop: Workshop, choice: NodeChoice) -> Iterator[tuple[Spot, Port, Order, Dims]]:
    """Everything that the choice gives, to whom, in which format and with which dimensions."""
    alternative = shop.chosen[id(choice)]
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        if port.is_result:
            own = own_dims(choice, port, alternative.form, choice.rule(shop.tensors))
            yield choice.spot(port), port, format_, present(own)


def _read(shop: Workshop, choice: NodeChoice, graph: ir.Graph | None) -> Iterator[tuple[int, ir.Value, Port | None]]:
    """What the choice reads of one graph inside the node, or of the node itself: at which place, and the value; a
    constant has no port."""
    alternative, rule = shop.chosen[id(choice)], choice.rule(shop.tensors)
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        if not port.is_result and choice.spot(port).graph is graph:
            dims = port_dims(choice, port, alternative.form, rule)
            found = shop.copies.read(port.operand.tensor, format_, dims, stem=shop.stem(port.operand))
            yield choice.spot(port).index, found.value, port
    if choice.passage is None or choice.node is None:
        return
    passage, form = choice.passage, alternative.form
    assert isinstance(form, FreeForm)
    values = read_at(choice.node, passage.reads)
    for spot, value, axes in zip(passage.reads, values, passage.rule.inputs, strict=True):
        if spot.graph is graph and value is not None and axes is not None and shop.tensors.is_constant(value):
            yield spot.index, shop.constants.laid(value, input_dims(passage.rule, axes, form.dims)), None


def _set_scanned(shop: Workshop, choice: NodeChoice, node: ir.Node) -> None:
    """Say where the axis lies along which a Scan goes."""
    passage, form = choice.passage, shop.chosen[id(choice)].form
    if passage is None or passage.scanned is None or passage.outer_axis is None or not isinstance(form, FreeForm):
        return
    attribute, place, count = passage.scanned
    known = list(node.attributes.get_ints(attribute, (0,) * count) or ())
    axes = [*known[:place], form.axes.index(passage.outer_axis), *known[place + 1 :]]
    if axes != known:
        node.attributes[attribute] = ir.AttrInt64s(attribute, axes)
