"""Each node of a graph in its planned lowering."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import ask, supported_by
from relayout.backend.noted_costs import note_cost
from relayout.candidates.alternatives import FixedLowering, FreeLowering, Lowering, in_source
from relayout.candidates.elision import elision_of
from relayout.errors import InternalError
from relayout.formulate.plan import PlannedNode
from relayout.layout.conversion import flat
from relayout.layout.memory_format import boxes_of, is_whole
from relayout.layout.metadata_keys import NODE_COST_KEY, SOURCE_KEY
from relayout.model.emit import Physical
from relayout.ops import Axes, Edit, Fixed, Free, Listed, Replacement, extents_of, is_read
from relayout.rewrite.annotations import keep_notes
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.conversions import convert_results
from relayout.rewrite.copies import stem_of
from relayout.rewrite.fixed_nodes import Operator, fixed_operator, named_results, packed_operator
from relayout.rewrite.free_nodes import (
    connect_aliased,
    free_operator,
    fused_tiles,
    is_tiled_elementwise,
    with_units_of_operands,
)
from relayout.rewrite.operand_dims import port_dims, present
from relayout.rewrite.shardings import shardings_of, state_shardings
from relayout.rewrite.subgraphs import write_region_op
from relayout.rewrite.wiring import Wiring, connect_operands, register_results, wiring_of
from relayout.rewrite.writers import NodeWriter, SpaceWriter


class _Form(Struct, frozen=True):
    """The common part of nodes that share an alternative: their wiring, operator and edit."""

    wiring: Wiring
    operator: Operator = None
    edit: Edit | None = None
    is_tiled_elementwise: bool = False


def write(context: RewriteContext, node: ir.Node) -> None:
    """Write one node of the source. View ops and constants are written at their consumers."""
    planned = context.plan.of_node.get(node)
    if planned is None:
        return
    parts, shardings = node.device_configurations, shardings_of(planned)
    _write(context, planned, node)
    if parts:
        for each in context.written.get(id(planned), (node,)):
            state_shardings(each, parts, shardings)


def _write(context: RewriteContext, planned: PlannedNode, node: ir.Node) -> None:
    context.at(planned.device)
    lowering, rule = planned.lowering, planned.rule
    if isinstance(lowering, FixedLowering) and lowering.rewrite is not None:
        node_writer = NodeWriter(context, planned, node)
        node_writer.write(context.backend.at(planned.device), lowering.rewrite)
        _replace_node(context, planned, node, node_writer)
        return
    if isinstance(rule, Listed) and isinstance(lowering, FixedLowering):
        change = rule.alternatives[lowering.pick][2]
        if isinstance(change, Replacement):
            node_writer = NodeWriter(context, planned, node)
            node_writer.replace(change)
            _replace_node(context, planned, node, node_writer)
            return
    if node in context.tensors.region_edges:
        write_region_op(context, planned, node, write)
        return
    if planned.is_elided:
        _elide(context, planned, node)
        return
    if isinstance(lowering, FreeLowering) and lowering.rewritten:
        assert isinstance(rule, Free)
        space_writer = SpaceWriter(context, planned, node, rule, lowering)
        lowering.rewritten.write(space_writer)
        _replace_node(context, planned, node, space_writer)
        return
    form = _form(context, planned, node, lowering)
    is_aliased = False
    if form.is_tiled_elementwise:
        assert isinstance(rule, Free)
        assert isinstance(lowering, FreeLowering)
        is_aliased = connect_aliased(context, planned, node, rule, form.wiring)
        if not is_aliased:
            form = _form(context, planned, node, fused_tiles(context, planned, node, rule, lowering))
    elif isinstance(lowering, FreeLowering) and isinstance(rule, Free):
        form = _form(context, planned, node, with_units_of_operands(context, planned, rule, lowering))
    edit = None if is_aliased else form.edit
    if not is_aliased:
        connect_operands(context, planned, node, form.wiring)
        if form.operator is not None:
            form.operator(node)
        register_results(context, planned, node, form.wiring)
    if edit is not None:
        context.emitter.edit(node, edit, node.outputs[0].name or "")
    # A backend may charge for the rank that the source has, which a tiled operator does not show.
    is_tiled = isinstance(lowering, FreeLowering) and not is_whole(flat(lowering.dims))
    if is_tiled or NODE_COST_KEY in node.metadata_props:
        note_cost([node], planned.chosen.cost, is_told=is_tiled and _is_charged(context, planned, node))
    context.insert_before(node)
    if edit is not None and edit.gather is not None:
        _gather(context, planned, node, edit.gather)
    convert_results(context, node, planned)


def _is_charged(context: RewriteContext, planned: PlannedNode, node: ir.Node) -> bool:
    """Whether the backend charges for a node as it is written."""
    backend = context.backend
    stated = ask(backend, node) if supported_by(backend, node) else ()
    return any(each.cost for each in stated if each.device == planned.device)


def _form(context: RewriteContext, planned: PlannedNode, node: ir.Node, lowering: Lowering) -> _Form:
    """The form of the node under this lowering: that of its alternative, or another in its place."""
    other = None if lowering is planned.lowering else lowering
    of = named_results(node), other
    return context.shared(planned.chosen, of, lambda: _computed_form(context, planned, lowering))


def _computed_form(context: RewriteContext, planned: PlannedNode, lowering: Lowering) -> _Form:
    rule = planned.rule
    wiring = wiring_of(context, planned, lowering)
    if isinstance(lowering, FreeLowering):
        assert isinstance(rule, Free)
        return _Form(wiring, *free_operator(context, planned, rule, lowering), is_tiled_elementwise(rule, lowering))
    assert isinstance(lowering, FixedLowering)
    if isinstance(rule, Free) and rule.edit_operands is not None:
        return _Form(wiring, edit=_edit_of_operands(rule, lowering))
    if isinstance(rule, Free):
        return _Form(wiring, *packed_operator(context, planned, rule, lowering))
    if isinstance(rule, Fixed):
        return _Form(wiring, fixed_operator(context, planned, rule, lowering))
    change = rule.alternatives[lowering.pick][2] if isinstance(rule, Listed) else None
    return _Form(wiring, edit=change if isinstance(change, Edit) else None)


def _edit_of_operands(rule: Free, lowering: FixedLowering) -> Edit | None:
    """The edit of a node whose operands have orders of their own."""
    assert rule.edit_operands is not None
    inputs, outputs = ([flat(dims or ()) for dims in side] for side in (lowering.inputs, lowering.outputs))
    return None if lowering.changes_nothing else rule.edit_operands(inputs, outputs)


def _replace_node(
    context: RewriteContext, planned: PlannedNode, node: ir.Node, writer: NodeWriter | SpaceWriter
) -> None:
    """Replace the node by those that the writer has emitted, for the cost of all of them."""
    note_cost(writer.nodes, planned.chosen.cost)
    if len(writer.nodes) == 1 and node.name:
        # The verifier takes a node of the very name for the source's, operand by operand.
        writer.nodes[0].name = context.emitter.fresh(node.name)
    for each in writer.nodes:
        keep_notes(each, node)
    context.written[id(planned)] = writer.nodes
    is_backends = isinstance(planned.lowering, FixedLowering) and planned.lowering.rewrite is not None
    for port, format_ in planned.results():
        physical = writer.defined.get(port.index)
        if physical is None:
            if is_read(node.outputs[port.index]):
                raise InternalError(f"{planned.label}: its rewrite defines no result {port.index}")
            continue
        context.copies.add(port.operand.tensor, format_, physical)
        own = present(planned.operand_dims(port))
        is_permuted = own != in_source(len(port.operand.view.axes))
        if physical.shape is None and (is_permuted or boxes_of(format_)):
            context.annotate(physical.value, port.operand, own, format_)
        if is_backends and physical.shape is None and physical.value.producer() in writer.nodes:
            result = node.outputs[port.index]
            physical.value.metadata_props[SOURCE_KEY] = result.metadata_props.get(SOURCE_KEY) or result.name or ""
    context.insert_before(node)
    convert_results(context, node, planned)


def _gather(context: RewriteContext, planned: PlannedNode, node: ir.Node, axes: Axes) -> None:
    """Gather a result that is a vector over the dimensions of the operand: the entries of these axes, and the extents
    of those among them that are tiled or padded."""
    lowering, rule = planned.lowering, planned.rule
    assert isinstance(lowering, FreeLowering)
    assert isinstance(rule, Free)
    places = {group[0].axis: place for place, group in enumerate(lowering.dims) if len(group) == 1 and is_whole(group)}
    cut = [axis for axis in axes if axis not in places]
    places.update({axis: len(lowering.dims) + n for n, axis in enumerate(cut)})
    known = [extent for extent in (rule.extents[axis] for axis in cut) if isinstance(extent, int)]
    assert len(known) == len(cut)
    raw = node.outputs[0]
    positions = context.emitter.integers(f"{raw.name}_axes", [places[axis] for axis in axes])
    extents = extents_of(raw)
    operand = node.inputs[0]
    assert operand is not None
    assert operand.shape is not None
    raw.shape = ir.Shape([len(operand.shape)])
    whole = raw
    if known:
        parts = [raw, context.emitter.integers(f"{raw.name}_known", known)]
        count = len(operand.shape) + len(known)
        whole = context.emitter.node("Concat", parts, {"axis": 0}, raw, [count], f"{raw.name}_all")
    read = context.emitter.node("Gather", [whole, positions], {"axis": 0}, raw, extents or (), f"{raw.name}_in_order")
    for port, format_ in planned.results():
        context.copies.add(
            port.operand.tensor, format_, Physical(read, context.copies.first(port.operand.tensor, format_).dims)
        )
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
    for device in planned.chosen.devices:
        context.at(device)
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
