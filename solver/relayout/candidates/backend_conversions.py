"""Conversions for which a backend has a native operator."""

from __future__ import annotations

from typing import NamedTuple

from relayout.backend.calls import conversion_cost_of, conversion_of
from relayout.backend.interface import Backend, Reordering, TensorType, element_size
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.tensors import Operand, Tensor
from relayout.layout.conversion import cuts_nest, dims_shape, moved_groups, one_each, tiling_of
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.layout.memory_format import BlackBoxFormat, Extent, MemoryFormat, atom_extent, boxes_of, with_units


class ConversionQuery(NamedTuple):
    """A conversion from layout `source` to layout `target`; a dimension of axes without names is `*`."""

    tensor: TensorType
    source: Layout
    target: Layout

    @property
    def is_nameless(self) -> bool:
        """Whether a layout has no names, so that it does not determine the conversion."""
        return self.source.is_any or self.target.is_any


class ConversionEnd(NamedTuple):
    """A tensor in one format, as a query has it. The layout is `*` a dimension where axes have no names."""

    tensor: TensorType
    layout: Layout


class Transposition(NamedTuple):
    """The extents of the dimensions that a Transpose moves as wholes, and its `perm`."""

    shape: tuple[Extent, ...]
    perm: tuple[int, ...]

    def query(self, element_size: int) -> ConversionQuery:
        """The Transpose as numbered layouts: `source` counts the dimensions, and `target` is the perm."""
        given, wanted = ("".join(map(str, order)) for order in (range(len(self.perm)), self.perm))
        tensor = TensorType(element_size, self.shape)
        return ConversionQuery(tensor, Layout.from_names(given), Layout.from_names(wanted))


def conversion_query(
    names: AxisNames, base: Operand | None, source: MemoryFormat, target: MemoryFormat
) -> ConversionQuery | None:
    """The query for a tensor's base operand. None for a scalar, an unknown rank, or a layout of too many dimensions."""
    given, wanted = (conversion_end(names, base, order) for order in (source, target))
    return None if given is None or wanted is None else ConversionQuery(*given, wanted.layout)


def conversion_end(
    names: AxisNames, base: Operand | None, order: MemoryFormat, sizes: tuple[Extent, ...] | None = None
) -> ConversionEnd | None:
    """One end of the query of `conversion_query`, or None where there is none.

    `sizes`: the extents that the query's tensor has in place of the operand's own, some of which may be unknown.
    """
    if base is None or not base.view.extents:
        return None
    extents, whole = base.view.extents, base_format(base, order)
    if whole is None or len(whole) > MAX_RANK or not _stands_in_full(whole, extents):
        return None
    tensor = TensorType(element_size(base.value), tuple([atom_extent(atom, sizes or extents) for atom in whole]))
    return ConversionEnd(tensor, names.layout(base, whole, padded=True) or Layout.any(len(whole)))


def base_format(base: Operand, format_: MemoryFormat) -> MemoryFormat | None:
    """A format of the tensor in the axes of its base value, the unit axes included.

    They are the tensor's own, unless a Reshape splits one of them at an unknown extent. Then it is None where the parts
    of that axis are apart, and for a black box, which says nothing of parts.
    """
    if base.view.is_plain:
        return with_units(format_, base.view.extents)
    own = None if boxes_of(format_) else base.view.from_base(format_)
    return None if own is None else with_units(own, base.view.extents)


def transposition(
    extents: tuple[Extent, ...], sizes: tuple[Extent, ...], source: MemoryFormat, target: MemoryFormat
) -> Transposition | None:
    """The one Transpose between two formats.

    Dimensions are groups of atoms that the Transpose moves as wholes, so that Reshapes which the model has or lacks do
    not change the price. None where one Transpose is not enough, or a layout would have too many dimensions. `sizes`:
    the extents with one assumed for each that is not known, which may not be a multiple of a tile.
    """
    dims, moved = moved_groups(one_each(source), one_each(target), extents)
    places = {group: place for place, group in enumerate(dims)}
    if len(dims) > MAX_RANK or places.keys() != {*moved}:
        return None
    shape = tuple([1 if extent == 0 else extent for extent in dims_shape(dims, sizes)])
    return Transposition(shape, tuple([places[group] for group in moved]))


def most_stated_cost(
    backend: Backend,
    names: AxisNames,
    base: Operand,
    tensor: Tensor,
    sizes: tuple[Extent, ...],
    source: MemoryFormat,
    target: MemoryFormat,
) -> int | None:
    """The greatest cost that the backend states for a conversion of the tensor, asked by the axes' names and numbers;
    0 where it states none. None where the conversion is not one Transpose.

    `base` is the tensor as an operand. `sizes`: the tensor's extents, with one assumed for each that is not known.
    """
    if not cuts_nest(source, target) or any(tiling_of(each, tensor.extents) is None for each in (source, target)):
        return None
    stated: list[int | None] = [0]
    turn = transposition(tensor.extents, sizes, source, target)
    if turn is not None:
        stated.append(conversion_cost_of(backend, *turn.query(element_size(tensor.base))))
    own_sizes = sizes if len(sizes) == len(base.view.extents) else None
    given, wanted = (conversion_end(names, base, each, own_sizes) for each in (source, target))
    if given is not None and wanted is not None:
        query = ConversionQuery(*given, wanted.layout)
        own = None if query.is_nameless else conversion_of(backend, *query)
        stated += [own.cost if own is not None else None, conversion_cost_of(backend, *query)]
    return max(cost for cost in stated if cost is not None)


def _stands_in_full(order: MemoryFormat, extents: tuple[Extent, ...]) -> bool:
    """Whether the format has its unit dimensions where full orders have them. A black box cannot be reshaped."""
    return not isinstance(order, BlackBoxFormat) or order.units == tuple(extents[atom.axis] == 1 for atom in order)


def native_conversion(backend: Backend, query: ConversionQuery | None) -> Reordering | None:
    """The backend's native operator for a conversion, with its rewrite; None where it has none."""
    if query is None or query.is_nameless or type(backend).conversion is Backend.conversion:
        return None
    own = conversion_of(backend, *query)
    return own if own is not None and own.rewrite is not None else None
