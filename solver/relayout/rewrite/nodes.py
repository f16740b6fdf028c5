"""Each node of a graph in the form that was chosen for it."""

from __future__ import annotations

import onnx_ir as ir

from relayout.candidates.alternatives import FreeForm, LaidForm, NodeChoice, in_source
from relayout.candidates.elision import pieces_of
from relayout.errors import InternalError
from relayout.layout.memory_format import boxes_of
from relayout.model.emit import Physical
from relayout.ops import Axes, Edit, Fixed, Free, Listed, extents_of
from relayout.rewrite.context import Workshop
from relayout.rewrite.conversions import copies_after
from relayout.rewrite.fixed_nodes import write_fixed, write_packed
from relayout.rewrite.free_nodes import write_free
from relayout.rewrite.function_calls import operand_extents
from relayout.rewrite.operand_dims import own_dims, port_dims, present
from relayout.rewrite.subgraphs import write_holder
from relayout.rewrite.wiring import give, wire
from relayout.rewrite.writers import NodeWay, SpaceWay

__all__ = ["leave_out", "write"]



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
    if node in shop.tensors.passages:
        write_holder(shop, choice, node, write)
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
        wire(shop, choice, node)
        if isinstance(rule, Free):
            edit = write_packed(shop, node, rule, form, extents)
        elif isinstance(rule, Fixed):
            write_fixed(shop, node, rule, form, extents)
        elif isinstance(rule, Listed):
            edit = rule.alternatives[form.pick][2]
        give(shop, choice, node)
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
    way.write(shop.backend.at(shop.chosen[id(choice)].device), form.rewrite)
    _replace_node(shop, choice, node, way.given)


def _write_by_rule(shop: Workshop, choice: NodeChoice, node: ir.Node, rule: Free, form: FreeForm) -> None:
    """In other operators of ONNX's."""
    assert form.rewritten is not None
    way = SpaceWay(shop, choice, node, rule, form)
    form.rewritten.write(way)
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
        is_turned = own != in_source(len(port.operand.view.axes))
        if physical.shape is None and (is_turned or boxes_of(format_)):
            shop.annotate(physical.value, port.operand, own, format_)
    shop.place(node)
    copies_after(shop, node, choice)


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



def leave_out(shop: Workshop, choice: NodeChoice, node: ir.Node, form: LaidForm) -> None:
    """No node: the values that hold what it reads hold what it gives, by other names of their dimensions."""
    rule = shop.tensors.rules.get(node)
    assert isinstance(rule, Free)
    assert rule.left_out is not None
    source, result = choice.ports
    pieces = pieces_of(rule.left_out, source, result)
    assert pieces is not None
    read, given = shop.chosen[id(choice)].formats
    tensor = source.operand.tensor
    first = shop.copies.first(tensor, read)
    dims = pieces.carried(first.dims)
    if dims is None:
        # Its dimensions are cut otherwise than the pieces are.
        first = shop.copies.read(tensor, read, port_dims(choice, source, form, rule), stem=shop.stem(source.operand))
        dims = pieces.carried(first.dims)
        assert dims is not None
    shop.copies.enter(result.operand.tensor, given, Physical(first.value, dims, first.shape))
    shop.place(node)
    copies_after(shop, node, choice)
