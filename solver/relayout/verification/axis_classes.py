"""Equivalence classes of axes: the names that operators give an axis, over all axes that are one by the operators
between.

Where operators name an axis differently, each name is valid: a network may transpose its image. No name is preferred
for an operator between that requires a layout, so any of them counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from itertools import chain

import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.verification.axis_names import AxisPaths, walk
from relayout.verification.constants import computed_ahead
from relayout.verification.operator_facts import OURS, AxisNames, axis_names, beside_reshaped, is_by_place, named
from relayout.verification.subgraph_values import region_edges

__all__ = ["CommonNames"]

_Place = tuple[ir.Value, int]
"""An axis of a value."""


class CommonNames:
    """The names of all axes of a model, computed on first use."""

    def __init__(
        self,
        model: ir.Model,
        *,
        beside_pieces: bool = False,
        given: Mapping[ir.Value, AxisNames] | None = None,
        paths: AxisPaths | None = None,
    ) -> None:
        """`beside_pieces`: names pass through a Reshape along the axes that it does not split or fuse. `given`: names
        of values, independent of their operators; without them, operators on constants give no names, as a constant
        follows the data that it meets. `paths` are the model's, where the caller has them."""
        self._model = model
        self.paths = paths or AxisPaths()
        self._given = given or {}
        self.silent: Set[ir.Node] = computed_ahead(model.graph) if given is None else frozenset()
        """The operators on constants, which give no names."""
        self._beside_pieces = beside_pieces
        self._same: dict[_Place, _Place] = {}
        self._written: set[ir.Value] = set()

    def of(self, value: ir.Value) -> tuple[frozenset[str], ...]:
        """For each axis of a value of known rank, the names that operators give it; empty where none names it."""
        names = self._names
        places = [(value, axis) for axis in range(len(value.shape or ()))]
        return tuple(frozenset(names.get(self._first(place), ())) for place in places)

    def beside_pieces(self) -> CommonNames:
        """The same names, which also pass through a Reshape along the axes that it does not split or fuse."""
        reshapes = (node for node in walk(self._model.graph) if node.op_type == "Reshape")
        if not any(self.paths.of(node, 0, 0) is None and any(beside_reshaped(node) or ()) for node in reshapes):
            return self
        return CommonNames(self._model, beside_pieces=True, paths=self.paths)

    @property
    def written(self) -> Set[ir.Value]:
        """The values whose axes only the layout of a position-wise node of `relayout` names."""
        return self._written if self._names else set()

    def towards(self, value: ir.Value, required: Layout) -> AxisNames | None:
        """The names by which the value is in this layout; None if an axis has only names other than the layout's.

        A name may also be on another axis. Axes of extent 1 match any name, and names that the layout lacks are
        ignored.
        """
        shape = value.shape
        if shape is None or len(shape) != required.rank:
            return None
        found: list[str | None] = []
        own = self.of(value)
        wide = (place for place, extent in enumerate(shape) if extent != 1)
        had = {required.names[place] for place in wide if required.names[place] in own[place]}
        for name, known, extent in zip(required.names, own, shape, strict=True):
            telling = known.intersection(required.names) if extent != 1 and name != "*" else frozenset()
            if name not in telling and not telling <= had:
                return None
            found.append(name if name in telling else None)
        return tuple(found) if any(found) else None

    def _join_node(self, node: ir.Node) -> None:
        for m, result in enumerate(node.outputs):
            for n, operand in enumerate(node.inputs):
                sources = self.paths.of(node, n, m) if operand is not None else None
                if sources is None and self._beside_pieces and node.op_type == "Reshape" and (n, m) == (0, 0):
                    sources = beside_reshaped(node)
                if operand is not None and sources is not None:
                    self._join(operand, result, sources)
        for source, target, axes in region_edges(node):
            self._join(source, target, axes)

    def _join(self, source: ir.Value, target: ir.Value, axes: tuple[int | None, ...]) -> None:
        for axis, own in enumerate(axes):
            if own is not None:
                self._same[self._first((source, own))] = self._first((target, axis))

    @cached_property
    def _names(self) -> dict[_Place, set[str]]:
        nodes = list(walk(self._model.graph))
        for node in nodes:
            self._join_node(node)
        found: dict[_Place, set[str]] = {}
        telling = [node for node in nodes if node not in self.silent and named(node) is not None]
        by_place = [node for node in telling if is_by_place(node)]
        others = (_named(node) for node in telling if not is_by_place(node))
        for value, names in chain(self._given.items(), *others):
            self._enter(found, value, names)
        for node in by_place if not self._given else ():
            # The layout attribute of a position-wise node names only axes that have no other name.
            own = list(_named(node))
            if not any(self._first((v, axis)) in found for v, names in own for axis in range(len(names))):
                for value, names in own:
                    self._enter(found, value, names)
                    self._written.add(value)
        return found

    def _enter(self, found: dict[_Place, set[str]], value: ir.Value, names: AxisNames) -> None:
        for axis, name in enumerate(names):
            if name is not None:
                found.setdefault(self._first((value, axis)), set()).add(name)

    def _first(self, place: _Place) -> _Place:
        while (other := self._same.get(place, place)) != place:
            self._same[place] = self._same.get(other, other)
            place = other
        return place


def _named(node: ir.Node) -> Iterator[tuple[ir.Value, AxisNames]]:
    """The names of the operands' axes by the node itself. ONNX's global pools determine none."""
    facts = named(node)
    if facts is None or (facts.pooled and node.domain != OURS):
        return
    for side, values in (("input", node.inputs), ("result", node.outputs)):
        for n, value in enumerate(values):
            names = axis_names(node, side, n) if value is not None else None
            if value is not None and names is not None:
                yield value, names
