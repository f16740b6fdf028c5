"""The conversions of a solution, each made once, right after what gives its tensor."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from relayout.candidates.alternatives import NodeChoice
from relayout.candidates.backend_conversions import question_of, written_by
from relayout.candidates.elision import pieces_of
from relayout.candidates.tensors import Tensor
from relayout.formulate.formulation import Made
from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Atom, Order, normal_form, with_units
from relayout.ops import Free
from relayout.rewrite.context import Workshop
from relayout.rewrite.operand_dims import flat, port_dims
from relayout.rewrite.writers import ConversionWay

__all__ = ["copies_after", "copies_inside", "make_copies"]


def copies_after(shop: Workshop, node: ir.Node, choice: NodeChoice) -> None:
    for port in choice.ports:
        if port.is_result:
            make_copies(shop, port.operand.tensor, stem=shop.stem(port.operand))
    shop.place_after(node)


def make_copies(shop: Workshop, tensor: Tensor, stem: str) -> None:
    """One Transpose for each format that is wanted in this graph and was not given, in the dimensions of its first
    reader."""
    for made in shop.made.get(tensor, ()):
        if shop.home[made] is not shop.graph or _made_by_backend(shop, made, stem):
            continue
        source = shop.copies.first(made.tensor, made.source)
        dims = _first_dims(shop, made)
        *before, copy = shop.emitter.on_the_way(source, dims, tensor.extents, f"{stem}_laid")
        # What is only regrouped at the end, others may read as it stood before.
        same = [p for p in before if normal_form(flat(p.dims), tensor.extents) == made.target]
        shop.copies.enter(tensor, made.target, copy, *same)
        axes = _axes_of(copy.dims, len(tensor.extents))
        if axes is not None:
            root = shop.tensors.operands[tensor.root]
            assert root is not None
            shop.annotate(copy.value, root, tuple((Atom(axis),) for axis in axes), made.target)


def copies_inside(shop: Workshop) -> None:
    """The same for tensors that are given outside this graph and wanted in another format in it alone."""
    here = [made for made, graph in shop.home.items() if graph is shop.graph]
    known = shop.copies.has
    tensors = [m.tensor for m in here if known(m.tensor, m.source) and not known(m.tensor, m.target)]
    for tensor in dict.fromkeys(tensors):
        make_copies(shop, tensor, stem=tensor.root.name or "")


def _made_by_backend(shop: Workshop, made: Made, stem: str) -> bool:
    """Write the conversion with the backend's own operator, where it has one."""
    backend, root = shop.backend.at(made.device), shop.tensors.operands[made.tensor.root]
    question = question_of(shop.requirements.names, root, made.source, made.target)
    reordering = written_by(backend, question)
    if question is None or reordering is None or reordering.rewrite is None:
        return False
    way = ConversionWay(shop, made, *(one_each(order) for order in _in_full(made)), stem=stem)
    way.write(backend, reordering.rewrite, f"{question.source} to {question.target}")
    shop.copies.enter(made.tensor, made.target, way.given[0])
    return True


def _in_full(made: Made) -> tuple[Order, Order]:
    """Both formats with their unit axes, as layouts have them."""
    extents = made.tensor.extents
    return with_units(made.source, extents), with_units(made.target, extents)


def _first_dims(shop: Workshop, made: Made) -> Dims:
    """The dimensions in which the first reader takes the copy, or in which those take it that a left-out node leaves it
    to. A copy that nobody takes as it is, for it is converted where it crosses to, has its atoms one by one."""
    wanted = [(shop.requirements.choices[touch.choice], touch.port) for touch in made.wanted_by]
    takers = [(choice, port) for choice, port in wanted if shop.chosen[id(choice)].formats[port] == made.target]
    if not takers:
        return one_each(_in_full(made)[1])
    left_out = [shop.chosen[id(choice)].is_left_out for choice, _ in takers]
    return _dims_for(shop, *takers[left_out.index(False) if False in left_out else 0])


def _dims_for(shop: Workshop, choice: NodeChoice, place: int) -> Dims:
    chosen, port = shop.chosen[id(choice)], choice.ports[place]
    rule = choice.rule(shop.tensors)
    if chosen.is_left_out and isinstance(rule, Free) and rule.left_out is not None:
        source, result = choice.ports
        pieces = pieces_of(rule.left_out, source, result)
        for reader, index in _readers(shop, result.operand.tensor, chosen.formats[1]):
            dims = pieces.carried(_dims_for(shop, reader, index), back=True) if pieces is not None else None
            if dims is not None:
                return dims
    return port_dims(choice, port, chosen.form, rule)


def _readers(shop: Workshop, tensor: Tensor, format_: Order) -> Iterator[tuple[NodeChoice, int]]:
    """Who reads the tensor in this format, and by which port."""
    for choice in shop.requirements.choices:
        formats = shop.chosen[id(choice)].formats
        for index, (port, wanted) in enumerate(zip(choice.ports, formats, strict=True)):
            if not port.is_result and port.operand.tensor is tensor and wanted == format_:
                yield choice, index


def _axes_of(dims: Dims, rank: int) -> tuple[int, ...] | None:
    """The root's axis in each dimension, where every dimension is one whole axis."""
    axes = tuple(group[0].axis for group in dims if len(group) == 1 and group[0].is_whole)
    return axes if len(axes) == len(dims) == rank else None
