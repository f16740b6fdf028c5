"""Conversions for which a backend has an operator of its own: how it is asked for them."""

from __future__ import annotations

from typing import NamedTuple

from relayout.backend.calls import conversion_of
from relayout.backend.interface import Backend, Reordering, TensorType, element_size
from relayout.candidates.axis_names import Names
from relayout.candidates.tensors import Operand
from relayout.layout.conversion import dims_shape, one_each, path
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Boxed, Extent, MemoryFormat, atom_extent, with_units

__all__ = ["Question", "question_of", "transpose_of", "written_by"]


class Question(NamedTuple):
    """A tensor that is in layout `source` and shall be in `target`; `*` for each dimension of what has no names."""

    tensor: TensorType
    source: Layout
    target: Layout

    @property
    def is_nameless(self) -> bool:
        """Without a layout's name there is no telling the backend's operator what to make."""
        return self.source.is_any or self.target.is_any


def question_of(names: Names, base: Operand | None, source: MemoryFormat, target: MemoryFormat) -> Question | None:
    """The question for a tensor, given as its root's operand; None of a scalar, where no rank is known, and where
    a layout has too few dimensions for it."""
    if base is None or not base.view.extents:
        return None
    extents = base.view.extents
    whole = with_units(source, extents), with_units(target, extents)
    if max(map(len, whole)) > MAX_RANK or not all(_stands_in_full(order, extents) for order in whole):
        return None
    lies = TensorType(element_size(base.value), tuple(atom_extent(atom, extents) for atom in whole[0]))
    given, wanted = [names.layout(base, order, padded=True) or Layout.any(len(order)) for order in whole]
    return Question(lies, given, wanted)


def transpose_of(size: int, extents: tuple[Extent, ...], source: MemoryFormat, target: MemoryFormat) -> Question | None:
    """The one Transpose between two formats, its dimensions by number: `source` counts them, `target` is the perm.

    None where there is none, or several, or more dimensions than a layout has. `size` is that of an element in bytes.
    """
    dims, found = one_each(source), []
    for stage in path(dims, one_each(target), extents):
        if stage.kind == "transpose":
            found.append((dims_shape(dims, extents), stage.perm))
        dims = stage.dims
    if len(found) != 1 or len(found[0][1]) > MAX_RANK:
        return None
    ((shape, perm),) = found
    given, wanted = ("".join(map(str, axes)) for axes in (range(len(perm)), perm))
    return Question(TensorType(size, tuple(shape)), Layout.from_names(given), Layout.from_names(wanted))


def _stands_in_full(order: MemoryFormat, extents: tuple[Extent, ...]) -> bool:
    """Whether what is in a box has its unit dimensions where orders in full have them, for it is not reshaped."""
    return not isinstance(order, Boxed) or order.units == tuple(extents[atom.axis] == 1 for atom in order)


def written_by(backend: Backend, question: Question | None) -> Reordering | None:
    """The backend's own operator for a conversion, with the way to write it, where it has one."""
    if question is None or question.is_nameless or type(backend).conversion is Backend.conversion:
        return None
    own = conversion_of(backend, *question)
    return own if own is not None and own.rewrite is not None else None
