"""Each node of a graph in the form that was chosen for it."""

from __future__ import annotations

import onnx_ir as ir

from relayout.candidates.alternatives import FixedLowering, FreeLowering, NodeAlternatives, in_source
from relayout.candidates.elision import elision_of
from relayout.errors import InternalError
from relayout.layout.memory_format import boxes_of
from relayout.model.emit import Physical
from relayout.ops import Axes, Edit, Fixed, Free, Listed, extents_of
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.conversions import copies_after
from relayout.rewrite.fixed_nodes import write_fixed, write_packed
from relayout.rewrite.free_nodes import write_free
from relayout.rewrite.function_calls import operand_extents
from relayout.rewrite.operand_dims import own_dims, port_dims, present
from relayout.rewrite.subgraphs import write_holder
from relayout.rewrite.wiring import give, wire
from relayout.rewrite.writers import NodeWay, SpaceWay

__all__ = ["leave_out", "write"]



def write(context: RewriteContext, node: ir.Node) -> None:
    """Write one node of the source in its chosen form; relabels and constants are written where they are read."""
    choice = context.by_node.get(node)
    if choice is None:
        return
    form = context.chosen[id(choice)].form
    rule = context.tensors.rules.get(node)
    edit: Edit | None = None
    if isinstance(form, FixedLowering) and form.rewrite is not None:
        _write_by(context, choice, node, form)
        return
    if node in context.tensors.region_edges:
        write_holder(context, choice, node, write)
        return
    if isinstance(form, FixedLowering) and form.left_out:
        leave_out(context, choice, node, form)
        return
    if isinstance(form, FreeLowering):
        assert isinstance(rule, Free)
        if form.rewritten:
            _write_by_rule(context, choice, node, rule, form)
            return
        edit = write_free(context, choice, node, rule, form)
    else:
        assert isinstance(form, FixedLowering)
        extents = operand_extents(choice)
        wire(context, choice, node)
        if isinstance(rule, Free):
            edit = write_packed(context, node, rule, form, extents)
        elif isinstance(rule, Fixed):
            write_fixed(context, node, rule, form, extents)
        elif isinstance(rule, Listed):
            edit = rule.alternatives[form.pick][2]
        give(context, choice, node)
    if edit is not None:
        _edit(context, node, edit)
    context.place(node)
    if edit is not None and edit.gather is not None:
        _gather(context, node, edit.gather)
    copies_after(context, node, choice)


def _write_by(context: RewriteContext, choice: NodeAlternatives, node: ir.Node, form: FixedLowering) -> None:
    """In the backend's own words."""
    assert form.rewrite is not None
    way = NodeWay(context, choice, node, form)
    way.write(context.backend.at(context.chosen[id(choice)].device), form.rewrite)
    _replace_node(context, choice, node, way.given)


def _write_by_rule(context: RewriteContext, choice: NodeAlternatives, node: ir.Node, rule: Free, form: FreeLowering) -> None:
    """In other operators of ONNX's."""
    assert form.rewritten is not None
    way = SpaceWay(context, choice, node, rule, form)
    form.rewritten.write(way)
    _replace_node(context, choice, node, way.given)


def _replace_node(context: RewriteContext, choice: NodeAlternatives, node: ir.Node, given: dict[int, Physical]) -> None:
    """What was emitted stands for the node."""
    alternative = context.chosen[id(choice)]
    rule = context.tensors.rules.get(node)
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        if not port.is_result:
            continue
        physical = given.get(port.index)
        if physical is None:
            if node.outputs[port.index].uses() or node.outputs[port.index].is_graph_output():
                raise InternalError(f"{choice.label}: its rewrite gives no result {port.index}")
            continue
        context.copies.enter(port.operand.tensor, format_, physical)
        own = present(own_dims(choice, port, alternative.form, rule))
        is_turned = own != in_source(len(port.operand.view.axes))
        if physical.shape is None and (is_turned or boxes_of(format_)):
            context.annotate(physical.value, port.operand, own, format_)
    context.place(node)
    copies_after(context, node, choice)


def _edit(context: RewriteContext, node: ir.Node, edit: Edit) -> None:
    for name, setting in edit.attributes.items():
        if setting is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = ir.convenience.convert_attribute(name, setting)
    for index, array in edit.constants.items():
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        context.replace(node, index, context.emitter.constant(f"{node.outputs[0].name}_{index}", array))


def _gather(context: RewriteContext, node: ir.Node, order: Axes) -> None:
    """The node's result is a vector over axes: read it back in the source's order."""
    raw = node.outputs[0]
    places = context.emitter.integers(f"{raw.name}_axes", order)
    extents = extents_of(raw)
    read = context.emitter.node("Gather", [raw, places], {"axis": 0}, raw, extents or (), f"{raw.name}_in_order")
    context.copies.replace(raw, read)
    context.place_after(node)



def leave_out(context: RewriteContext, choice: NodeAlternatives, node: ir.Node, form: FixedLowering) -> None:
    """No node: the values that hold what it reads hold what it gives, by other names of their dimensions."""
    rule = context.tensors.rules.get(node)
    assert isinstance(rule, Free)
    assert rule.elidable_as is not None
    source, result = choice.ports
    elision = elision_of(rule.elidable_as, source, result)
    assert elision is not None
    read, given = context.chosen[id(choice)].formats
    tensor = source.operand.tensor
    first = context.copies.first(tensor, read)
    dims = elision.carried(first.dims)
    if dims is None:
        # Its dimensions are cut otherwise than the pieces are.
        first = context.copies.read(tensor, read, port_dims(choice, source, form, rule), stem=context.stem(source.operand))
        dims = elision.carried(first.dims)
        assert dims is not None
    context.copies.enter(result.operand.tensor, given, Physical(first.value, dims, first.shape))
    context.place(node)
    copies_after(context, node, choice)
