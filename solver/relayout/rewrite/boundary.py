"""The ends of a graph: its inputs in their formats, and its outputs under their own names."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from relayout.candidates.alternatives import Port
from relayout.layout.memory_format import MemoryFormat
from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.ops import extents_of
from relayout.rewrite.constant_steps import Laid
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.conversions import make_copies
from relayout.rewrite.operand_dims import base_dims, own_dims, present

__all__ = ["enter_inputs", "give_output", "leave_outputs"]


def enter_inputs(context: RewriteContext) -> None:
    """Each input of the model's graph in its format, with the copies that somebody wants."""
    for port, format_, own in _boundary(context):
        if port.is_result:
            context.register(port.operand.tensor.base, port.operand, format_, present(own))
            make_copies(context, port.operand.tensor, stem=port.operand.tensor.base.name or "")
            context.place(None, front=True)


def leave_outputs(context: RewriteContext) -> None:
    """Each output of the model's graph under its own name, in its format."""
    given: set[ir.Value] = set()
    for port, format_, own in _boundary(context):
        if not port.is_result:
            dims = base_dims(port.operand, own)
            found = context.copies.read(port.operand.tensor, format_, dims, stem=context.stem(port.operand))
            give_output(context, port.index, found.value, given)
            context.place(None)
            context.annotate(context.graph.outputs[port.index], port.operand, present(own), format_)


def _boundary(context: RewriteContext) -> Iterator[tuple[Port, MemoryFormat, Laid]]:
    """Each graph input and output that has a choice, with its format and its own dimensions then."""
    for choice in context.requirements.choices:
        if choice.node is None:
            alternative = context.chosen[id(choice)]
            for port, format_ in zip(choice.ports, alternative.formats, strict=True):
                yield port, format_, own_dims(choice, port, alternative.form, None)


def give_output(context: RewriteContext, place: int, value: ir.Value, given: set[ir.Value]) -> None:
    """Let `value` be this output of the graph at hand. `given` are those that are outputs already."""
    old, producer = context.graph.outputs[place], value.producer()
    if value is old and value not in given:
        given.add(value)
        return
    is_outside = producer is None or producer.graph not in (context.graph, None)
    if is_outside or value in given or value.is_graph_output():
        value = context.emitter.node("Identity", [value], {}, value, extents_of(value) or (), f"{old.name}_given")
    name, old_producer = old.name, old.producer()
    if old is not value and old_producer is not None and old_producer.graph is context.graph:
        old.name = context.emitter.fresh(f"{name}_source")
        # Its annotation speaks of the axes of the source's value, which it has the name of no more.
        old.metadata_props[SOURCE_KEY] = old.metadata_props.get(SOURCE_KEY) or name or ""
        value.metadata_props.pop(SOURCE_KEY, None)
        value.name = name
        value.doc_string = value.doc_string or old.doc_string
    context.graph.outputs[place] = value
    given.add(value)
