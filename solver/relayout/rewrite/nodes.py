"""Each node of a graph in its planned lowering."""

from __future__ import annotations

import onnx_ir as ir

from relayout.backend.noted_costs import note_cost
from relayout.candidates.alternatives import FixedLowering, FreeLowering, in_source
from relayout.candidates.elision import elision_of
from relayout.errors import InternalError
from relayout.formulate.plan import PlannedNode
from relayout.layout.memory_format import boxes_of
from relayout.model.emit import Physical, attribute_of
from relayout.ops import Axes, Edit, Fixed, Free, Listed, extents_of
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.conversions import convert_results
from relayout.rewrite.copies import stem_of
from relayout.rewrite.fixed_nodes import write_fixed, write_packed
from relayout.rewrite.free_nodes import write_free
from relayout.rewrite.function_calls import operand_extents
from relayout.rewrite.operand_dims import port_dims, present
from relayout.rewrite.subgraphs import write_region_op
from relayout.rewrite.wiring import connect_operands, register_results
from relayout.rewrite.writers import NodeWriter, SpaceWriter

__all__ = ["write"]


def write(context: RewriteContext, node: ir.Node) -> None:
    """Write one node of the source. View ops and constants are written at their consumers."""
    planned = context.plan.of_node.get(node)
    if planned is None:
        return
    lowering, rule = planned.lowering, planned.rule
    edit: Edit | None = None
    if isinstance(lowering, FixedLowering) and lowering.rewrite is not None:
        node_writer = NodeWriter(context, planned, node)
        node_writer.write(context.backend.at(planned.device), lowering.rewrite)
        _replace_node(context, planned, node, node_writer)
        return
    if node in context.tensors.region_edges:
        write_region_op(context, planned, node, write)
        return
    if planned.is_elided:
        _elide(context, planned, node)
        return
    if isinstance(lowering, FreeLowering):
        assert isinstance(rule, Free)
        if lowering.rewritten:
            space_writer = SpaceWriter(context, planned, node, rule, lowering)
            lowering.rewritten.write(space_writer)
            _replace_node(context, planned, node, space_writer)
            return
        edit = write_free(context, planned, node, rule, lowering)
    else:
        assert isinstance(lowering, FixedLowering)
        extents = operand_extents(planned)
        connect_operands(context, planned, node)
        if isinstance(rule, Free):
            edit = write_packed(context, node, rule, lowering, extents)
        elif isinstance(rule, Fixed):
            write_fixed(context, node, rule, lowering, extents)
        elif isinstance(rule, Listed):
            edit = rule.alternatives[lowering.pick][2]
        register_results(context, planned, node)
    if edit is not None:
        _edit(context, node, edit)
    context.insert_before(node)
    if edit is not None and edit.gather is not None:
        _gather(context, node, edit.gather)
    convert_results(context, node, planned)


def _replace_node(
    context: RewriteContext, planned: PlannedNode, node: ir.Node, writer: NodeWriter | SpaceWriter
) -> None:
    """Replace the node by those that the writer has emitted, for the cost of all of them."""
    note_cost(writer.nodes, planned.chosen.cost)
    context.written[id(planned)] = writer.nodes
    for port, format_ in planned.results():
        physical = writer.defined.get(port.index)
        if physical is None:
            if node.outputs[port.index].uses() or node.outputs[port.index].is_graph_output():
                raise InternalError(f"{planned.label}: its rewrite defines no result {port.index}")
            continue
        context.copies.add(port.operand.tensor, format_, physical)
        own = present(planned.operand_dims(port))
        is_permuted = own != in_source(len(port.operand.view.axes))
        if physical.shape is None and (is_permuted or boxes_of(format_)):
            context.annotate(physical.value, port.operand, own, format_)
    context.insert_before(node)
    convert_results(context, node, planned)


def _edit(context: RewriteContext, node: ir.Node, edit: Edit) -> None:
    for name, setting in edit.attributes.items():
        if setting is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = attribute_of(name, setting)
    for index, array in edit.constants.items():
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        context.replace_input(node, index, context.emitter.constant(f"{node.outputs[0].name}_{index}", array))


def _gather(context: RewriteContext, node: ir.Node, order: Axes) -> None:
    """Gather a result that is a vector over the axes of the operand, in the order that the source has."""
    raw = node.outputs[0]
    positions = context.emitter.integers(f"{raw.name}_axes", order)
    extents = extents_of(raw)
    operand = node.inputs[0]
    assert operand is not None
    assert operand.shape is not None
    raw.shape = ir.Shape([len(operand.shape)])
    read = context.emitter.node("Gather", [raw, positions], {"axis": 0}, raw, extents or (), f"{raw.name}_in_order")
    context.copies.replace(raw, read)
    context.insert_after(node)


def _elide(context: RewriteContext, planned: PlannedNode, node: ir.Node) -> None:
    """Remove the node: its operand's values, with other dimensions, become its result."""
    rule = planned.rule
    assert isinstance(rule, Free)
    assert rule.elidable_as is not None
    source, result = planned.ports
    elision = elision_of(rule.elidable_as, source, result)
    assert elision is not None
    read, produced = planned.formats
    tensor = source.operand.tensor
    first = context.copies.first(tensor, read)
    dims = elision.carried(first.dims)
    if dims is None:
        # The value's dimensions are not groups of the view's tiles.
        first = context.copies.read(tensor, read, port_dims(planned, source), stem=stem_of(tensor))
        dims = elision.carried(first.dims)
        assert dims is not None
    context.copies.add(result.operand.tensor, produced, Physical(first.value, dims, first.shape))
    context.insert_before(node)
    convert_results(context, node, planned)
