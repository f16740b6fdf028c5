"""Equivalence classes of axes: the names that operators give an axis, over all axes that are one by the operators
between.

Where operators name an axis differently, each name is valid: a network may transpose its image. No name is preferred
for an operator between that requires a layout, so any of them counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import cached_property

import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.verification.model_index import ModelIndex, OperatorClass
from relayout.verification.operator_facts import AxisNames, beside_reshaped
from relayout.verification.subgraph_values import region_edges

_NONE: frozenset[str] = frozenset()


class _Places(dict[ir.Value, int]):
    """The number of the place of each value's first axis. An axis has one place; values get theirs when asked for."""

    def __init__(self, same: list[int]) -> None:
        self._same = same

    def __missing__(self, value: ir.Value) -> int:
        place = self[value] = len(self._same)
        # A scalar has a place too, so that no two values start at one unless they share all.
        self._same.extend(range(place, place + max(1, len(value.shape or ()))))
        return place


class CommonNames:
    """The names of all axes of a model, computed on first use."""

    def __init__(self, index: ModelIndex, *, beside_pieces: bool = False) -> None:
        """`beside_pieces`: names pass through a Reshape along the axes that it does not split or fuse.

        Operators on constants give no names, as a constant follows the data that it meets."""
        self._index = index
        self._silent = index.ahead
        self._beside_pieces = beside_pieces
        # Each place leads to another one that is the same axis, or to itself.
        self._same: list[int] = []
        self._places = _Places(self._same)
        self._ways: dict[OperatorClass, list[tuple[int, int, tuple[int | None, ...], bool]]] = {}
        self._single: dict[str, frozenset[str]] = {}
        self._written: set[ir.Value] = set()
        self._found: dict[int, tuple[frozenset[str], ...]] = {}

    def of(self, value: ir.Value) -> tuple[frozenset[str], ...]:
        """For each axis of a value of known rank, the names that operators give it; empty where none names it."""
        names, start = self._names, self._places[value]
        found = self._found.get(start)
        if found is None:
            places = range(start, start + len(value.shape or ()))
            found = self._found[start] = tuple([names.get(self._first(place), _NONE) for place in places])
        return found

    @cached_property
    def beside_pieces(self) -> CommonNames:
        """The same names, which also pass through a Reshape along the axes that it does not split or fuse."""
        if self._beside_pieces:
            return self
        kinds = {self._index.class_of(node) for node in self._index.nodes if node.op_type == "Reshape"}
        if not any(kind.path(0, 0) is None and any(beside_reshaped(kind.node) or ()) for kind in kinds):
            return self
        return CommonNames(self._index, beside_pieces=True)

    @property
    def written(self) -> Set[ir.Value]:
        """The values whose axes only the layout of a position-wise node of `relayout` names."""
        return self._written if self._names else set()

    def towards(self, value: ir.Value, required: Layout) -> list[AxisNames]:
        """The names by which the value is in this layout; none if an axis has only names other than the layout's.

        A name may also be on another axis. Axes of extent 1 match any name, and names that the layout lacks are
        ignored. An axis beside those that a Reshape splits or fuses has the names that it has behind the Reshape too.
        """
        near = self.of(value)
        every = tuple(own | far for own, far in zip(near, self.beside_pieces.of(value), strict=True))
        found = [_towards(value, own, required) for own in dict.fromkeys((near, every))]
        return [names for names in found if names is not None]

    def _join_node(self, node: ir.Node, kind: OperatorClass) -> None:
        ways = self._ways.get(kind)
        if ways is None:
            ways = self._ways[kind] = list(self._passed(kind))
        if ways:
            operands, results, places = node.inputs, node.outputs, self._places
            for n, m, sources, is_whole in ways:
                operand, result = operands[n], results[m]
                if operand is None:
                    continue
                if is_whole and result not in places:
                    # All axes are the same ones: the two values share their places.
                    places[result] = places[operand]
                else:
                    self._join(operand, result, sources)
        for source, target, axes in region_edges(node) if node in self._index.nesting else ():
            self._join(source, target, axes)

    def _passed(self, kind: OperatorClass) -> Iterator[tuple[int, int, tuple[int | None, ...], bool]]:
        """The operands and results, by number, between which the operators of a class pass axes on, and whether all
        axes stay where they are."""
        for m in range(len(kind.node.outputs)):
            for n, operand in enumerate(kind.node.inputs):
                sources = kind.path(n, m) if operand is not None else None
                if sources is None and self._beside_pieces and kind.node.op_type == "Reshape" and (n, m) == (0, 0):
                    sources = beside_reshaped(kind.node)
                if sources is not None and operand is not None and operand.shape is not None:
                    yield n, m, sources, sources == tuple(range(len(operand.shape)))

    def _join(self, source: ir.Value, target: ir.Value, axes: tuple[int | None, ...]) -> None:
        before, after = self._places[source], self._places[target]
        for axis, own in enumerate(axes):
            if own is not None:
                self._same[self._first(before + own)] = self._first(after + axis)

    @cached_property
    def _names(self) -> dict[int, frozenset[str]]:
        naming: list[tuple[ir.Node, OperatorClass]] = []
        for node in self._index.nodes:
            kind = self._index.class_of(node)
            self._join_node(node, kind)
            if kind.names and node not in self._silent:
                naming.append((node, kind))
        found: dict[int, frozenset[str]] = {}
        by_place: list[list[tuple[ir.Value, AxisNames]]] = []
        entered: set[tuple[int, AxisNames]] = set()
        for node, kind in naming:
            own = _named(node, kind)
            if kind.facts is not None and kind.facts.by_place:
                by_place.append(own)
                continue
            for value, names in own:
                # Values that share their places often have the same names too.
                given = self._places[value], names
                if given not in entered:
                    entered.add(given)
                    self._enter(found, *given)
        for own in by_place:
            # The layout attribute of a position-wise node names only axes that have no other name.
            places = [self._places[value] + axis for value, names in own for axis in range(len(names))]
            if not any(self._first(place) in found for place in places):
                for value, names in own:
                    self._enter(found, self._places[value], names)
                    self._written.add(value)
        return found

    def _enter(self, found: dict[int, frozenset[str]], place: int, names: AxisNames) -> None:
        same = self._same
        for axis, name in enumerate(names, place):
            if name is not None:
                first = axis if same[axis] == axis else self._first(axis)
                known = found.get(first)
                if known is None:
                    # Most axes have one name, and those of one name share it.
                    found[first] = self._single.setdefault(name, frozenset((name,)))
                elif name not in known:
                    found[first] = known | {name}

    def _first(self, place: int) -> int:
        same = self._same
        while (other := same[place]) != place:
            same[place] = same[other]
            place = other
        return place


def _named(node: ir.Node, kind: OperatorClass) -> list[tuple[ir.Value, AxisNames]]:
    """The names of the operands' axes by the node itself."""
    found = [((node.outputs if is_result else node.inputs)[n], names) for is_result, n, names in kind.names]
    return [(value, names) for value, names in found if value is not None]


def _towards(value: ir.Value, own: Sequence[frozenset[str]], required: Layout) -> AxisNames | None:
    """The names, of each axis's `own`, by which the value is in this layout."""
    shape = value.shape
    if shape is None or len(shape) != required.rank:
        return None
    found: list[str | None] = []
    wide = (place for place, extent in enumerate(shape) if extent != 1)
    had = {required.names[place] for place in wide if required.names[place] in own[place]}
    for name, known, extent in zip(required.names, own, shape, strict=True):
        telling = known.intersection(required.names) if extent != 1 and name != "*" else frozenset()
        if name not in telling and not telling <= had:
            return None
        found.append(name if name in telling else None)
    return tuple(found) if any(found) else None
