"""The graph's inputs in their planned formats, and its outputs under their own names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from relayout.candidates.alternatives import OperandDims, Port
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Extent, MemoryFormat
from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.layout.relaid_constant import note_transform, relaid
from relayout.layout.terms import GENERATED
from relayout.model.dims.output_dims import carry_names
from relayout.ops import extents_of
from relayout.rewrite.annotations import keep_notes
from relayout.rewrite.constants import steps_to
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.conversions import convert
from relayout.rewrite.operand_dims import base_dims, present


def enter_inputs(context: RewriteContext) -> None:
    """Register each input of the model's graph, with its default, in its format, and emit its conversions."""
    for port, format_, own in _boundary(context):
        if port.is_result:
            value = port.operand.tensor.base
            declared, default = value.shape, value.const_value
            if default is not None and (steps := steps_to(own, tuple(default.shape.numpy()))):
                value.const_value = relaid(default, steps)
                value.const_value.name = value.name
                note_transform(value, value, default)
            context.register(value, port.operand, format_, present(own))
            _keep_denotations(value, declared, present(own))
            convert(context, port.operand.tensor)
            context.insert_before(None, front=True)


def leave_outputs(context: RewriteContext, declared: Sequence[tuple[ir.Shape | None, Sequence[str | None]]]) -> None:
    """Set each output of the model's graph to a value of its format, under the output's name and with the extents,
    denotations and names of dims that the source has declared for it."""
    written: set[ir.Value] = set()
    for port, format_, own in _boundary(context):
        if not port.is_result:
            value = context.read(port.operand, format_, base_dims(port.operand, own))
            set_output(context, port.index, value, written)
            context.insert_before(None)
            result = context.graph.outputs[port.index]
            shape, names = declared[port.index]
            extents = () if shape is None else [dim if isinstance(dim, int) else dim.value for dim in shape.dims]
            keep_extents(result, extents, present(own))
            _keep_denotations(result, shape, present(own))
            carry_names(result, _names_in_format(names, extents, result.shape, present(own)))
            context.annotate(result, port.operand, present(own), format_)


def keep_extents(result: ir.Value, declared: Sequence[Extent], own: Dims) -> None:
    """Give an output each number that the source declares for its dim: the Reshape that showed it may be gone. So
    with a name, where the source names the dim of the value inside otherwise.

    A dim to which inference gave a name keeps that: a second run would give the output's to the values inside.
    """
    if result.shape is None or result.shape.is_static():
        return
    dims = [*result.shape.dims]
    for place, group in enumerate(own):
        known = declared[group[0].axis] if len(group) == 1 and group[0].is_whole and declared else None
        if isinstance(known, int):
            dims[place] = known
        elif known is not None and not any(text.startswith(GENERATED) for text in (known, str(dims[place]))):
            dims[place] = ir.SymbolicDim(known)
    result.shape = ir.Shape(dims)


def _names_in_format(
    names: Sequence[str | None], extents: Sequence[Extent], shape: ir.Shape | None, own: Dims
) -> list[str | None]:
    """The names that the source declares for the axes of an output, one a dim of `shape` whose extent is open. A name
    of `extents`, which are the source's, is one where the dim has lost it."""
    if shape is None:
        return []
    found: list[str | None] = []
    for group, dim in zip(own, shape, strict=True):
        axis = group[0].axis if len(group) == 1 and group[0].is_whole and isinstance(dim, ir.SymbolicDim) else None
        name = names[axis] if axis is not None and names else None
        extent = extents[axis] if axis is not None and extents else None
        is_lost = str(dim).startswith(GENERATED) and isinstance(extent, str) and not extent.startswith(GENERATED)
        found.append(name or (str(extent) if is_lost else None))
    return found


def _keep_denotations(value: ir.Value, declared: ir.Shape | None, own: Dims) -> None:
    """Give each dim the denotation that the source declares for its axis, such as DATA_CHANNEL."""
    if declared is None or value.shape is None or len(value.shape) != len(own):
        return
    for place, group in enumerate(own):
        denotation = declared.get_denotation(group[0].axis) if len(group) == 1 and group[0].is_whole else None
        if denotation and value.shape.get_denotation(place) != denotation:
            value.shape = value.shape.copy() if value.shape.frozen else value.shape
            value.shape.set_denotation(place, denotation)


def _boundary(context: RewriteContext) -> Iterator[tuple[Port, MemoryFormat, OperandDims]]:
    """Each graph input and output that has a choice, with its format and its own dimensions."""
    for planned in context.plan.nodes:
        if planned.node is None:
            context.at(planned.device)
            for port, format_ in zip(planned.ports, planned.formats, strict=True):
                yield port, format_, planned.operand_dims(port)


def set_output(context: RewriteContext, index: int, value: ir.Value, written: set[ir.Value]) -> None:
    """Set output `index` of the current graph to `value`. `written` are the values that are outputs already."""
    old, producer = context.graph.outputs[index], value.producer()
    if value is old and value not in written:
        written.add(value)
        return
    is_outside = producer is None or producer.graph not in (context.graph, None)
    if is_outside or value in written or value.is_graph_output():
        value = context.emitter.node("Identity", [value], {}, value, extents_of(value) or (), f"{old.name}_given")
    name, old_producer = old.name, old.producer()
    if old is not value and old_producer is not None and old_producer.graph is context.graph:
        _rename(old, context.emitter.fresh(f"{name}_source"))
        # The annotation refers to the axes of the source's value, and the new output takes over the name.
        old.metadata_props[SOURCE_KEY] = old.metadata_props.get(SOURCE_KEY) or name or ""
        value.metadata_props.pop(SOURCE_KEY, None)
        _rename(value, name)
        keep_notes(value, old)
    context.graph.outputs[index] = value
    written.add(value)


def _rename(value: ir.Value, name: str | None) -> None:
    """Give a value another name. A node without a name is known by that of its first result, which becomes its own."""
    node = value.producer()
    if node is not None and not node.name and node.outputs[0] is value:
        node.name = value.name
    value.name = name
