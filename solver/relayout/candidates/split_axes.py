"""Tensors whose axes Reshapes split at extents that are no numbers.

Such a tensor gets an axis for each factor, so that all its views have whole axes. The legal model reads the extents of
the factors off an earlier tensor at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice

import onnx_ir as ir
from msgspec import Struct

from relayout.candidates.tensors import Operand, Tensor
from relayout.layout.memory_format import Extent
from relayout.layout.terms import dividend_of, term_of
from relayout.layout.view import View
from relayout.ops import Free, Relabel, Rule


class SplitAxes(Struct, eq=False):
    """The axes split so far, while `graph` is walked: `tensors`, `operands` and `rules` are those found so far, and a
    split replaces the tensor and the operands that are views of it."""

    graph: ir.Graph
    tensors: list[Tensor]
    operands: dict[ir.Value, Operand | None]
    rules: Mapping[ir.Node, Rule | None]
    # The extents that are read for the factors of a tensor, each with the index of the tensor.
    _factors: list[tuple[str, int]] = []
    # For each extent, the index of the first tensor of the main graph that has it, among those seen.
    _first: dict[Extent, int] = {}
    _seen: int = 0
    # Replaced operands live on, so that no other view gets the identity of one of theirs.
    _replaced: list[Operand] = []

    def may_split(self, tensor: Tensor, factors: Mapping[int, Sequence[Extent]]) -> bool:
        """Whether these axes of a tensor may become one for each factor, whose extents have to be read off earlier
        tensors. Those of the main graph are visible everywhere."""
        if tensor.constant or tensor.base.graph is not self.graph:
            return False
        for other in islice(self.tensors, self._seen, None):
            if not other.constant and other.base.graph is self.graph:
                for each in other.extents:
                    self._first.setdefault(each, other.index)
        self._seen = len(self.tensors)
        groups = [group for operand in self._views_of(tensor) for group in operand.view.axes]
        return all(atom.is_whole or atom.axis not in factors for group in groups for atom in group) and all(
            self._first.get(name, tensor.index) < tensor.index for name in self._read_for(factors, tensor.index)
        )

    def split(self, operand: Operand, factors: Mapping[int, Sequence[Extent]]) -> Operand:
        """The operand after each of these axes of its tensor has become one for each factor, in all views of it."""
        old = operand.tensor
        self._factors += [(name, old.index) for name in self._read_for(factors, old.index)]
        extents = chain.from_iterable(factors.get(axis, [extent]) for axis, extent in enumerate(old.extents))
        tensor = Tensor(old.index, old.base, tuple(extents), old.constant)
        views: dict[int, View] = {}
        for each in self._views_of(old):
            self._replaced.append(each)
            if id(each.view) not in views:
                views[id(each.view)] = each.view.with_base_split(factors)
            self.operands[each.value] = Operand(tensor, views[id(each.view)], each.value)
        self.tensors[tensor.index] = tensor
        found = self.operands[operand.value]
        assert found is not None
        return found

    def are_readable(self, dead: AbstractSet[ir.Node]) -> bool:
        """Whether the legal model has, before each tensor that is split, one of each extent. It has none of `dead`
        nodes, and maybe none of elidable ones."""
        return all(
            any(self._is_read_off(tensor, name, dead) for tensor in islice(self.tensors, index))
            for name, index in self._factors
        )

    def _read_for(self, factors: Mapping[int, Sequence[Extent]], index: int) -> set[str]:
        """The names of the extents that are read to know those of the factors of a tensor: a quotient of an extent is
        computed from that where no earlier tensor has it."""
        found: set[str] = set()
        for name in {extent for extents in factors.values() for extent in extents if isinstance(extent, str)}:
            parts = dividend_of(name) if self._first.get(name, index) >= index else None
            found.update({name} if parts is None else term_of(parts[0]).names)
        return found

    def _is_read_off(self, tensor: Tensor, extent: str, dead: AbstractSet[ir.Node]) -> bool:
        value, node = tensor.base, tensor.base.producer()
        if extent not in tensor.extents or tensor.constant or value.graph is not self.graph or node in dead:
            return False
        is_whole = value.shape is not None and len(value.shape) == len(tensor.extents)
        rule = self.rules.get(node) if node is not None else None
        return is_whole and not (isinstance(rule, Free) and rule.elidable_as is not None)

    def _views_of(self, tensor: Tensor) -> list[Operand]:
        """The operands that are views of the tensor so far."""
        found = [self.operands[tensor.base]]
        reached = [tensor.base]
        for value in reached:
            for node, _ in value.uses():
                view = self.operands.get(node.outputs[0]) if isinstance(self.rules.get(node), Relabel) else None
                if view is not None and view.tensor is tensor and node.inputs[0] is value:
                    found.append(view)
                    reached.append(view.value)
        return [operand for operand in found if operand is not None]
