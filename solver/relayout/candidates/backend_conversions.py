"""Conversions for which a backend has a native operator."""

from __future__ import annotations

from typing import NamedTuple

from relayout.backend.calls import conversion_of
from relayout.backend.interface import Backend, Reordering, TensorType, element_size
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.tensors import Operand
from relayout.layout.conversion import dims_shape, moved_groups, one_each
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.layout.memory_format import BlackBoxFormat, Extent, MemoryFormat, atom_extent, with_units

__all__ = ["ConversionQuery", "conversion_query", "native_conversion", "transpose_query"]


class ConversionQuery(NamedTuple):
    """A conversion from layout `source` to layout `target`; a dimension of axes without names is `*`."""

    tensor: TensorType
    source: Layout
    target: Layout

    @property
    def is_nameless(self) -> bool:
        """Whether a layout has no names, so that it does not determine the conversion."""
        return self.source.is_any or self.target.is_any


def conversion_query(
    names: AxisNames,
    base: Operand | None,
    source: MemoryFormat,
    target: MemoryFormat,
    sizes: tuple[Extent, ...] | None = None,
) -> ConversionQuery | None:
    """The query for a tensor's base operand. None for a scalar, an unknown rank, or a layout of too many dimensions.

    `sizes`: the extents that the query's tensor has in place of the operand's own, some of which may be unknown.
    """
    if base is None or not base.view.extents:
        return None
    extents = base.view.extents
    whole = with_units(source, extents), with_units(target, extents)
    if max(map(len, whole)) > MAX_RANK or not all(_stands_in_full(order, extents) for order in whole):
        return None
    source_type = TensorType(element_size(base.value), tuple(atom_extent(atom, sizes or extents) for atom in whole[0]))
    given, wanted = [names.layout(base, order, padded=True) or Layout.any(len(order)) for order in whole]
    return ConversionQuery(source_type, given, wanted)


def transpose_query(
    size: int,
    extents: tuple[Extent, ...],
    sizes: tuple[Extent, ...],
    source: MemoryFormat,
    target: MemoryFormat,
) -> ConversionQuery | None:
    """The one Transpose between two formats as numbered layouts: `source` counts the dimensions, `target` is the perm.

    Dimensions are groups of atoms that the Transpose moves as wholes, so that Reshapes which the model has or lacks do
    not change the price. None where one Transpose is not enough, or a layout would have too many dimensions. `size`:
    bytes per element; `sizes`: the extents with one assumed for each that is not known, which may not be a multiple of
    a tile.
    """
    dims, moved = moved_groups(one_each(source), one_each(target), extents)
    if len(dims) > MAX_RANK or sorted(dims) != sorted(moved):
        return None
    shape = tuple([1 if extent == 0 else extent for extent in dims_shape(dims, sizes)])
    given, wanted = ("".join(str(dims.index(group)) for group in order) for order in (dims, moved))
    return ConversionQuery(TensorType(size, shape), Layout.from_names(given), Layout.from_names(wanted))


def _stands_in_full(order: MemoryFormat, extents: tuple[Extent, ...]) -> bool:
    """Whether the format has its unit dimensions where full orders have them. A black box cannot be reshaped."""
    return not isinstance(order, BlackBoxFormat) or order.units == tuple(extents[atom.axis] == 1 for atom in order)


def native_conversion(backend: Backend, query: ConversionQuery | None) -> Reordering | None:
    """The backend's native operator for a conversion, with its rewrite; None where it has none."""
    if query is None or query.is_nameless or type(backend).conversion is Backend.conversion:
        return None
    own = conversion_of(backend, *query)
    return own if own is not None and own.rewrite is not None else None
