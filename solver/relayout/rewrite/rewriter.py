"""The way through one graph: its inputs, each node in the form that was chosen for it, its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from relayout.choices import FreeForm, LaidForm, NodeChoice, Port, in_source
from relayout.errors import InternalError
from relayout.graph_codec import SOURCE_KEY
from relayout.memory_format import Order
from relayout.physical import Physical
from relayout.rewrite.constants import Laid
from relayout.rewrite.conversions import copies_after, make_copies
from relayout.rewrite.dims import own_dims, port_dims, present, root_dims
from relayout.rewrite.fixed_nodes import write_fixed, write_packed
from relayout.rewrite.free_nodes import write_free
from relayout.rewrite.functions import operand_extents
from relayout.rewrite.left_out import leave_out
from relayout.rewrite.ways import NodeWay, SpaceWay
from relayout.rewrite.workshop import Workshop
from relayout.rules import Axes, Edit, Fixed, Free, Listed, extents_of
from relayout.views import captured_values, graphs_of

__all__ = ["clean_up", "enter_inputs", "leave_outputs", "replace_inside", "write"]


def enter_inputs(shop: Workshop) -> None:
    """Each graph input in its format, with the copies that somebody wants."""
    for port, format_, own in _boundary(shop):
        if port.is_result:
            shop.register(port.operand.tensor.root, port.operand, format_, present(own))
            make_copies(shop, port.operand.tensor, stem=port.operand.tensor.root.name or "")
            shop.place(None, front=True)


def leave_outputs(shop: Workshop) -> None:
    """Each graph output under its own name, in its format."""
    given: set[ir.Value] = set()
    for port, format_, own in _boundary(shop):
        if not port.is_result:
            dims = root_dims(port.operand, own)
            found = shop.copies.read(port.operand.tensor, format_, dims, stem=shop.stem(port.operand))
            _give_output(shop, port.index, found, given)
            shop.place(None)
            shop.annotate(shop.graph.outputs[port.index], port.operand, present(own))


def _boundary(shop: Workshop) -> Iterator[tuple[Port, Order, Laid]]:
    """Each graph input and output that has a choice, with its format and its own dimensions then."""
    for choice in shop.requirements.choices:
        if choice.node is None:
            alternative = shop.chosen[id(choice)]
            for port, format_ in zip(choice.ports, alternative.formats, strict=True):
                yield port, format_, own_dims(choice, port, alternative.form, None)


def _give_output(shop: Workshop, place: int, found: Physical, given: set[ir.Value]) -> None:
    old = shop.graph.outputs[place]
    value = found.value
    if value is old and value not in given:
        given.add(value)
        return
    if value.is_graph_input() or value.is_initializer() or value in given or value.is_graph_output():
        value = shop.emitter.node("Identity", [value], {}, value, extents_of(value) or (), f"{old.name}_given")
    name = old.name
    if old is not value:
        old.name = shop.emitter.fresh(f"{name}_source")
        value.name = name
        value.doc_string = value.doc_string or old.doc_string
    shop.graph.outputs[place] = value
    given.add(value)


def write(shop: Workshop, node: ir.Node) -> None:
    """Write one node of the source in its chosen form; relabels and constants are written where they are read."""
    choice = shop.by_node.get(node)
    if choice is None:
        return
    form = shop.chosen[id(choice)].form
    rule = shop.tensors.rules.get(node)
    edit: Edit | None = None
    if isinstance(form, LaidForm) and form.rewrite is not None:
        _write_by(shop, choice, node, form)
        return
    if isinstance(form, LaidForm) and form.left_out:
        leave_out(shop, choice, node, form)
        return
    if isinstance(form, FreeForm):
        assert isinstance(rule, Free)
        if form.rewritten:
            _write_by_rule(shop, choice, node, rule, form)
            return
        edit = write_free(shop, choice, node, rule, form)
    else:
        assert isinstance(form, LaidForm)
        extents = operand_extents(choice)
        _wire(shop, choice, node)
        if isinstance(rule, Free):
            edit = write_packed(shop, node, rule, form, extents)
        elif isinstance(rule, Fixed):
            write_fixed(shop, node, rule, form, extents)
        elif isinstance(rule, Listed):
            edit = rule.alternatives[form.pick][2]
        _give(shop, choice, node)
    if graphs_of(node):
        _wire_captured(shop, node, choice)
    if edit is not None:
        _edit(shop, node, edit)
    shop.place(node)
    if edit is not None and edit.gather is not None:
        _gather(shop, node, edit.gather)
    copies_after(shop, node, choice)


def _write_by(shop: Workshop, choice: NodeChoice, node: ir.Node, form: LaidForm) -> None:
    """In the backend's own words."""
    assert form.rewrite is not None
    way = NodeWay(shop, choice, node, form)
    way.write(shop.backend.at(shop.chosen[id(choice)].place), form.rewrite)
    _replace_node(shop, choice, node, way.given)


def _write_by_rule(shop: Workshop, choice: NodeChoice, node: ir.Node, rule: Free, form: FreeForm) -> None:
    """In other operators of ONNX's."""
    assert rule.write is not None
    way = SpaceWay(shop, choice, node, rule, form)
    rule.write(way)
    _replace_node(shop, choice, node, way.given)


def _replace_node(shop: Workshop, choice: NodeChoice, node: ir.Node, given: dict[int, Physical]) -> None:
    """What was emitted stands for the node."""
    alternative = shop.chosen[id(choice)]
    rule = shop.tensors.rules.get(node)
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        if not port.is_result:
            continue
        physical = given.get(port.index)
        if physical is None:
            if node.outputs[port.index].uses() or node.outputs[port.index].is_graph_output():
                raise InternalError(f"{choice.label}: its rewrite gives no result {port.index}")
            continue
        shop.copies.enter(port.operand.tensor, format_, physical)
        own = present(own_dims(choice, port, alternative.form, rule))
        if physical.shape is None and own != in_source(len(port.operand.view.axes)):
            shop.annotate(physical.value, port.operand, own)
    shop.place(node)
    copies_after(shop, node, choice)


def _wire(shop: Workshop, choice: NodeChoice, node: ir.Node) -> None:
    """Let each input read its copy; constants are re-laid out."""
    form = shop.chosen[id(choice)].form
    formats = shop.chosen[id(choice)].formats
    rule = shop.tensors.rules.get(node)
    assert isinstance(form, LaidForm)
    ports = {p.index: (p, f) for p, f in zip(choice.ports, formats, strict=True) if not p.is_result}
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if index in ports:
            port, format_ = ports[index]
            dims = port_dims(choice, port, form, rule)
            found = shop.copies.read(port.operand.tensor, format_, dims, stem=shop.stem(port.operand))
            shop.replace(node, index, found.value)
            continue
        own = form.inputs[index] if index < len(form.inputs) else None
        if own is not None and shop.tensors.is_constant(value):
            shop.replace(node, index, shop.constants.laid(value, own))


def _wire_captured(shop: Workshop, node: ir.Node, choice: NodeChoice) -> None:
    captured = captured_values(node)
    formats = shop.chosen[id(choice)].formats
    found: dict[ir.Value, ir.Value] = {}
    for port, format_ in zip(choice.ports, formats, strict=True):
        if port.is_result or port.index < len(node.inputs):
            continue
        dims = root_dims(port.operand, in_source(len(port.operand.view.axes)))
        read = shop.copies.read(port.operand.tensor, format_, dims, stem=shop.stem(port.operand))
        found[captured[port.index - len(node.inputs)]] = read.value
    replace_inside(node, found)


def _give(shop: Workshop, choice: NodeChoice, node: ir.Node) -> None:
    alternative = shop.chosen[id(choice)]
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        # A result that nobody reads may be gone from what was written.
        if port.is_result and port.index < len(node.outputs):
            own = present(own_dims(choice, port, alternative.form, None))
            shop.register(node.outputs[port.index], port.operand, format_, own)


def _edit(shop: Workshop, node: ir.Node, edit: Edit) -> None:
    for name, setting in edit.attributes.items():
        if setting is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = ir.convenience.convert_attribute(name, setting)
    for index, array in edit.constants.items():
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        shop.replace(node, index, shop.emitter.constant(f"{node.outputs[0].name}_{index}", array))


def _gather(shop: Workshop, node: ir.Node, order: Axes) -> None:
    """The node's result is a vector over axes: read it back in the source's order."""
    raw = node.outputs[0]
    places = shop.emitter.integers(f"{raw.name}_axes", order)
    extents = extents_of(raw)
    read = shop.emitter.node("Gather", [raw, places], {"axis": 0}, raw, extents or (), f"{raw.name}_in_order")
    shop.copies.replace(raw, read)
    shop.place_after(node)


def clean_up(shop: Workshop) -> None:
    """Enter the new constants, and drop what nothing reads any more."""
    for value in shop.emitter.constants:
        shop.graph.register_initializer(value)
    for node in reversed(list(shop.graph)):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            _let_go(node)
            shop.graph.remove(node, safe=True)
    for name, value in list(shop.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del shop.graph.initializers[name]
    for source, copies in shop.constants.replaced.items():
        # A weight that exists in one layout only keeps its name.
        gone = source.producer() is None and source.name and source.name not in shop.graph.initializers
        if gone and len(copies) == 1 and copies[0].name in shop.graph.initializers:
            copies[0].name = source.name
            copies[0].metadata_props.pop(SOURCE_KEY, None)
            if copies[0].const_value is not None:
                copies[0].const_value.name = source.name


def _let_go(node: ir.Node) -> None:
    """The graphs inside a node read nothing any more."""
    for outer in graphs_of(node):
        for inner in outer.all_nodes():
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def replace_inside(node: ir.Node, found: Mapping[ir.Value, ir.Value]) -> None:
    """Let the graphs inside a node read what stands for each value, all at once: what stands for one value may be what
    another was."""
    for outer in graphs_of(node):
        for graph in (outer, *outer.subgraphs()):
            for inner in graph:
                for index, value in enumerate(inner.inputs):
                    if value is not None and value in found:
                        inner.replace_input_with(index, found[value])
            for place, value in enumerate(graph.outputs):
                if value in found:
                    graph.outputs[place] = found[value]

