"""The conversions of a solution, each made once, right after what gives its tensor."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.backend_conversions import conversion_query, native_conversion
from relayout.candidates.elision import elision_of
from relayout.candidates.tensors import Tensor
from relayout.formulate.formulation import PlannedConversion
from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Atom, MemoryFormat, normal_form, with_units
from relayout.ops import Free
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.operand_dims import flat, port_dims
from relayout.rewrite.writers import ConversionWay

__all__ = ["copies_after", "copies_inside", "make_copies"]


def copies_after(context: RewriteContext, node: ir.Node, choice: NodeAlternatives) -> None:
    for port in choice.ports:
        if port.is_result:
            make_copies(context, port.operand.tensor, stem=context.stem(port.operand))
    context.place_after(node)


def make_copies(context: RewriteContext, tensor: Tensor, stem: str) -> None:
    """One Transpose for each format that is wanted in this graph and was not given, in the dimensions of its first
    reader."""
    for made in context.made.get(tensor, ()):
        if context.home[made] is not context.graph or _made_by_backend(context, made, stem):
            continue
        source = context.copies.first(made.tensor, made.source)
        dims = _first_dims(context, made)
        *before, copy = context.emitter.on_the_way(source, dims, tensor.extents, f"{stem}_laid")
        # What is only regrouped at the end, others may read as it stood before.
        same = [p for p in before if normal_form(flat(p.dims), tensor.extents) == made.target]
        context.copies.enter(tensor, made.target, copy, *same)
        axes = _axes_of(copy.dims, len(tensor.extents))
        if axes is not None:
            base = context.tensors.operands[tensor.base]
            assert base is not None
            context.annotate(copy.value, base, tuple((Atom(axis),) for axis in axes), made.target)


def copies_inside(context: RewriteContext) -> None:
    """The same for tensors that are given outside this graph and wanted in another format in it alone."""
    here = [made for made, graph in context.home.items() if graph is context.graph]
    known = context.copies.has
    tensors = [m.tensor for m in here if known(m.tensor, m.source) and not known(m.tensor, m.target)]
    for tensor in dict.fromkeys(tensors):
        make_copies(context, tensor, stem=tensor.base.name or "")


def _made_by_backend(context: RewriteContext, made: PlannedConversion, stem: str) -> bool:
    """Write the conversion with the backend's own operator, where it has one."""
    backend, base = context.backend.at(made.device), context.tensors.operands[made.tensor.base]
    question = conversion_query(context.requirements.names, base, made.source, made.target)
    reordering = native_conversion(backend, question)
    if question is None or reordering is None or reordering.rewrite is None:
        return False
    way = ConversionWay(context, made, *(one_each(order) for order in _in_full(made)), stem=stem)
    way.write(backend, reordering.rewrite, f"{question.source} to {question.target}")
    context.copies.enter(made.tensor, made.target, way.given[0])
    return True


def _in_full(made: PlannedConversion) -> tuple[MemoryFormat, MemoryFormat]:
    """Both formats with their unit axes, as layouts have them."""
    extents = made.tensor.extents
    return with_units(made.source, extents), with_units(made.target, extents)


def _first_dims(context: RewriteContext, made: PlannedConversion) -> Dims:
    """The dimensions in which the first reader takes the copy, or in which those take it that a left-out node leaves it
    to. A copy that nobody takes as it is, for it is converted where it crosses to, has its atoms one by one."""
    wanted = [(context.requirements.choices[use.choice], use.port) for use in made.wanted_by]
    takers = [(choice, port) for choice, port in wanted if context.chosen[id(choice)].formats[port] == made.target]
    if not takers:
        return one_each(_in_full(made)[1])
    left_out = [context.chosen[id(choice)].is_left_out for choice, _ in takers]
    return _dims_for(context, *takers[left_out.index(False) if False in left_out else 0])


def _dims_for(context: RewriteContext, choice: NodeAlternatives, place: int) -> Dims:
    chosen, port = context.chosen[id(choice)], choice.ports[place]
    rule = choice.rule(context.tensors)
    if chosen.is_left_out and isinstance(rule, Free) and rule.elidable_as is not None:
        source, result = choice.ports
        elision = elision_of(rule.elidable_as, source, result)
        for reader, index in _readers(context, result.operand.tensor, chosen.formats[1]):
            dims = elision.carried(_dims_for(context, reader, index), back=True) if elision is not None else None
            if dims is not None:
                return dims
    return port_dims(choice, port, chosen.form, rule)


def _readers(context: RewriteContext, tensor: Tensor, format_: MemoryFormat) -> Iterator[tuple[NodeAlternatives, int]]:
    """Who reads the tensor in this format, and by which port."""
    for choice in context.requirements.choices:
        formats = context.chosen[id(choice)].formats
        for index, (port, wanted) in enumerate(zip(choice.ports, formats, strict=True)):
            if not port.is_result and port.operand.tensor is tensor and wanted == format_:
                yield choice, index


def _axes_of(dims: Dims, rank: int) -> tuple[int, ...] | None:
    """The root's axis in each dimension, where every dimension is one whole axis."""
    axes = tuple(group[0].axis for group in dims if len(group) == 1 and group[0].is_whole)
    return axes if len(axes) == len(dims) == rank else None
