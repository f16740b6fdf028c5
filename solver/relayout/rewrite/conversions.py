"""The conversions of a plan, each emitted once, right after the producer of its tensor."""

from __future__ import annotations

import onnx_ir as ir

from relayout.backend.noted_costs import note_cost
from relayout.candidates.backend_conversions import base_format, conversion_query, native_conversion
from relayout.candidates.elision import elision_of
from relayout.candidates.tensors import Tensor
from relayout.formulate.def_use import TensorUse
from relayout.formulate.plan import PlannedConversion, PlannedNode
from relayout.layout.conversion import Dims, flat, one_each
from relayout.layout.memory_format import Atom, normal_form, with_units
from relayout.layout.view import View
from relayout.ops import Free
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.copies import stem_of
from relayout.rewrite.operand_dims import port_dims
from relayout.rewrite.writers import ConversionWriter


def convert_results(context: RewriteContext, node: ir.Node, planned: PlannedNode) -> None:
    """Emit the conversions of the node's results after it."""
    for port, _ in planned.results():
        convert(context, port.operand.tensor)
    context.insert_after(node)


def convert(context: RewriteContext, tensor: Tensor) -> None:
    """Emit the tensor's conversions of the current graph, each in the dimensions of its first consumer."""
    for conversion in context.plan.conversions_of.get(tensor, ()):
        if context.insertion_graphs.get(conversion, context.model.graph) is not context.graph:
            continue
        context.at(conversion.device)
        emitted = len(context.emitter.emitted)
        (_write_by_backend if conversion.by_backend else _write)(context, conversion)
        context.written[id(conversion)] = context.emitter.emitted[emitted:]


def convert_from_outside(context: RewriteContext) -> None:
    """Emit the current region's conversions of tensors that are produced outside it."""
    copies, pending = context.copies, dict[Tensor, None]()
    for each, graph in context.insertion_graphs.items():
        if graph is context.graph:
            context.at(each.device)
            if copies.has(each.tensor, each.source) and not copies.has(each.tensor, each.target):
                pending[each.tensor] = None
    for tensor in pending:
        convert(context, tensor)


def _write(context: RewriteContext, conversion: PlannedConversion) -> None:
    """Write the conversion with the operators of ONNX."""
    tensor = conversion.tensor
    source = context.copies.first(tensor, conversion.source)
    dims = _first_dims(context, conversion)
    *before, copy = context.emitter.on_the_way(source, dims, tensor.extents, f"{stem_of(tensor)}_laid")
    for each in before:
        context.copies.name_dims(tensor, each, emitted=True)
    # A consumer of other dimensions reads the value before the final Reshape.
    same = [p for p in before if normal_form(flat(p.dims), tensor.extents) == conversion.target]
    context.copies.add(tensor, conversion.target, copy, *same, emitted=True)
    base = context.tensors.operands[tensor.base]
    assert base is not None
    axes = _axes_of(copy.dims, base.view)
    if axes is not None:
        context.annotate(copy.value, base, tuple((Atom(axis),) for axis in axes), conversion.target)


def _write_by_backend(context: RewriteContext, conversion: PlannedConversion) -> None:
    """Write the conversion with the backend's native operator."""
    backend, tensor = context.backend.at(conversion.device), conversion.tensor
    base = context.tensors.operands[tensor.base]
    assert conversion.native is not None
    query = conversion_query(context.plan.names, base, *conversion.native)
    reordering = native_conversion(backend, query)
    assert base is not None
    assert query is not None
    assert reordering is not None
    assert reordering.rewrite is not None
    source, target = (base_format(base, spelled) for spelled in conversion.native)
    assert source is not None  # else there is no query
    assert target is not None
    writer = ConversionWriter(context, conversion, one_each(source), one_each(target))
    writer.write(backend, reordering.rewrite, f"{query.source} to {query.target}")
    if reordering.cost is not None:
        # The one that was charged: for extents that are not known, with sizes assumed.
        note_cost(writer.nodes, conversion.cost)
    context.copies.add(tensor, conversion.target, writer.defined[0], emitted=True)


def _first_dims(context: RewriteContext, conversion: PlannedConversion) -> Dims:
    """The dimensions in which the first consumer reads the copy; elided consumers count only if there are no others. A
    copy without consumers is transferred, and each of its atoms is a dimension.
    """
    nodes = context.plan.nodes
    consumers = [use for use in conversion.consumers if context.plan.format_at(use) == conversion.target]
    if not consumers:
        return one_each(with_units(conversion.target, conversion.tensor.extents))
    return _dims_for(context, next((use for use in consumers if not nodes[use.choice].is_elided), consumers[0]))


def _dims_for(context: RewriteContext, use: TensorUse) -> Dims:
    """The dimensions in which this use reads its tensor, through elided nodes."""
    plan, planned = context.plan, context.plan.nodes[use.choice]
    rule = planned.rule
    if planned.is_elided and isinstance(rule, Free) and rule.elidable_as is not None:
        source, result = planned.ports
        elision = elision_of(rule.elidable_as, source, result)
        for consumer in plan.consumers_of.get(result.operand.tensor, ()):
            if elision is not None and plan.format_at(consumer) == planned.formats[1]:
                dims = elision.carried(_dims_for(context, consumer), back=True)
                if dims is not None:
                    return dims
    return port_dims(planned, planned.ports[use.port])


def _axes_of(dims: Dims, view: View) -> tuple[int, ...] | None:
    """The axis of the tensor's base value in each dimension; None unless every dimension is one whole axis."""
    axes = tuple([view.axes.index(group) for group in dims if len(group) and group in view.axes])
    return axes if len(axes) == len(dims) == len(view.axes) else None
