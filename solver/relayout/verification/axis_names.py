"""Axis-name inference, independent of the solver's: the names of every value's axes, from the graph alone.

`made` are the names by a value's producer, propagated forward; `read` are those by its readers, propagated backward.
The two may differ in a sound model: a network may transpose its image, or feed its tokens as channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import BOUNDARY_LAYOUT_KEY
from relayout.verification.model_index import ModelIndex, OperatorClass
from relayout.verification.operator_facts import AxisNames, is_channels_only, parsed_layout, with_whole_parts
from relayout.verification.subgraph_values import RegionEdge, region_edges

# Distinct readings of one value; only graphs that permute their axes on purpose have more than a few.
_MOST_READINGS = 8
_NONE: frozenset[AxisNames] = frozenset()


class Derivation:
    """The derived names of each value's axes; values of unknown rank have no entry."""

    def __init__(self, made: Mapping[ir.Value, AxisNames], read: Mapping[ir.Value, frozenset[AxisNames]]) -> None:
        self._made, self._read = made, read
        self._candidates: dict[tuple[AxisNames | None, frozenset[AxisNames]], list[AxisNames]] = {}

    def candidates(self, value: ir.Value) -> Sequence[AxisNames]:
        """Every naming of the value with at least one name, the producer's first."""
        key = made, read = self._made.get(value), self._read.get(value, _NONE)
        found = self._candidates.get(key)
        if found is None:
            namings = [*([made] if made else ()), *(read if len(read) < 2 else sorted(read, key=str))]
            found = self._candidates[key] = [naming for naming in namings if any(naming)]
        return found


def fed(model: ir.Model) -> list[ir.Value]:
    """The graph inputs that a caller must feed: those that have no default."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def derive(index: ModelIndex, written: Set[ir.Value]) -> Derivation:
    """Derive all names, from the layouts that graph inputs declare.

    A node of `relayout` names its results' axes by its layout attribute if no other name is known. For a node that
    reads no axis by name, that applies only to the results in `written`. Operators on constants do not name axes, as a
    constant has the names of the data that it is combined with.
    """
    graph = index.model.graph
    made = {value: names for value in graph.inputs if (names := declared_names(value)) is not None}
    rules = _Rules(index, index.ahead, written)
    _carry_forward(graph, (), made, rules)
    read: dict[ir.Value, frozenset[AxisNames]] = {}
    _carry_back(graph, read, rules)
    return Derivation(made, read)


class _Rules:
    """The rules of one derivation. `silent` nodes do not name axes; `written` are the values named by the layout
    attribute of their node.

    The names that a node gives its results are a function of its operator class, of the names of its operands, and of
    which results are `written`; those that it gives its operands, of the class and of the readings of its results. Both
    are computed once.
    """

    def __init__(self, index: ModelIndex, silent: Set[ir.Node], written: Set[ir.Value]) -> None:
        self.index, self.silent, self._written = index, silent, written
        self._forward: dict[object, tuple[AxisNames | None, ...]] = {}
        self._backward: dict[object, tuple[frozenset[AxisNames], ...]] = {}

    def results(self, node: ir.Node, made: Mapping[ir.Value, AxisNames]) -> tuple[AxisNames | None, ...]:
        """The names of the results' axes; None for a result of unknown rank."""
        kind = self.index.class_of(node)
        operands = tuple([made.get(value) if value is not None else None for value in node.inputs])
        written = tuple([value in self._written for value in node.outputs]) if self._written else ()
        key = kind, operands, written
        found = self._forward.get(key)
        if found is None:
            found = self._forward[key] = tuple(
                [
                    None
                    if value.shape is None
                    else with_whole_parts(self._made(kind, m, operands, any(written[m : m + 1])), value.shape)
                    for m, value in enumerate(node.outputs)
                ]
            )
        return found

    def operands(
        self, node: ir.Node, read: Mapping[ir.Value, frozenset[AxisNames]]
    ) -> tuple[frozenset[AxisNames], ...]:
        """The names by which the node, and the readers of its results, read its operands."""
        kind, tells = self.index.class_of(node), node not in self.silent
        readings = tuple([read.get(value, _NONE) for value in node.outputs])
        key = kind, tells, readings
        found = self._backward.get(key)
        if found is None:
            tells = tells and kind.facts is not None and kind.facts.names_axes
            found = self._backward[key] = tuple(
                [
                    _NONE
                    if value is None or value.shape is None
                    else _read(kind, n, len(value.shape), kind.inputs[n] if tells else None, readings)
                    for n, value in enumerate(node.inputs)
                ]
            )
        return found

    def _made(self, kind: OperatorClass, m: int, operands: Sequence[AxisNames | None], is_written: bool) -> AxisNames:
        rank, facts = len(kind.node.outputs[m].shape or ()), kind.facts
        own = kind.results[m] or (None,) * rank
        channels_only = is_channels_only(kind.node)
        if facts is not None and facts.names_axes and not channels_only and all(own):
            return own
        known: list[set[str]] = [set() for _ in range(rank)]
        for n, names in enumerate(operands):
            sources = kind.path(n, m) if names else None
            for axis, source in enumerate(sources or ()):
                if names and source is not None and (name := names[source]) is not None:
                    known[axis].add(name)
        carried = [_agreed(names) for names in known]
        if facts is None or facts.pooled:
            return tuple(carried)
        if not facts.names_axes:
            return own if is_written and not any(carried) and None not in own else tuple(carried)
        if channels_only:
            # It reads the channels alone by name; the operand names the rest.
            return tuple([mine if mine == "C" else other or mine for mine, other in zip(own, carried, strict=True)])
        return tuple(mine or theirs for mine, theirs in zip(own, carried, strict=True))


def _read(
    kind: OperatorClass, n: int, rank: int, own: AxisNames | None, readings: Sequence[frozenset[AxisNames]]
) -> frozenset[AxisNames]:
    """The names of the n-th operand by the operator itself (`own`), if any, and by the readers of its results. These
    name an axis of extent 1 as they like: that is no name of an axis of which one element is left."""
    found = {own} if own is not None else set()
    if own is not None and all(own):
        return frozenset(found)
    for m, given in enumerate(readings):
        sources = kind.path(n, m) if given else None
        operand, result = kind.node.inputs[n], kind.node.outputs[m]
        before, after = (value.shape or () if value is not None else () for value in (operand, result))
        for names in given if sources is not None else ():
            carried: list[str | None] = list(own) if own is not None else [None] * rank
            for axis, source in enumerate(sources or ()):
                if source is not None and (before[source] == 1 or after[axis] != 1):
                    carried[source] = carried[source] or names[axis]
            found.add(tuple(carried))
    return frozenset([reading for reading in found if any(reading)])


def _carry_forward(
    graph: ir.Graph, edges: Sequence[RegionEdge], made: dict[ir.Value, AxisNames], rules: _Rules
) -> None:
    """Add the names of all values of the graph; `edges` are the region edges into it."""
    for value in graph.inputs:
        if value not in made:
            _enter_from_edges(value, edges, made)
    nesting = rules.index.nesting
    for node in rules.index.nodes_of[graph]:
        inward: Sequence[RegionEdge] = ()
        if node in nesting:
            inward = list(region_edges(node))
            for inner in nesting[node]:
                _carry_forward(inner, inward, made, rules)
        if node in rules.silent:
            continue
        for result, names in zip(node.outputs, rules.results(node, made), strict=True):
            if names is not None:
                made[result] = names
                if inward and not any(names):
                    _enter_from_edges(result, inward, made)


def _enter_from_edges(value: ir.Value, edges: Sequence[RegionEdge], made: dict[ir.Value, AxisNames]) -> None:
    """Name the value's axes as those of the values that region edges lead from."""
    known: list[set[str]] = [set() for _ in value.shape or ()]
    for source, target, axes in edges:
        if target is value and source in made:
            for axis, own in enumerate(axes):
                name = made[source][own] if own is not None and _has_place(source, own, value, axis) else None
                known[axis].update([name] if name is not None else [])
    if any(known):
        made[value] = tuple(_agreed(names) for names in known)


def _has_place(value: ir.Value, axis: int, other: ir.Value, its_axis: int) -> bool:
    """Whether the name of the value's axis locates the other's axis. One of extent 1 may be anywhere, which does not
    show on the other where its extents are unknown."""
    own, its = (v.shape[a] if v.shape is not None else None for v, a in ((value, axis), (other, its_axis)))
    return own != 1 or its == 1


def _carry_back(graph: ir.Graph, read: dict[ir.Value, frozenset[AxisNames]], rules: _Rules) -> None:
    """Enter the names that readers give all values that the graph, and those inside it, read."""

    def enter(value: ir.Value, readings: frozenset[AxisNames]) -> None:
        known = read.get(value)
        both = readings if known is None else known | readings
        read[value] = both if len(both) <= _MOST_READINGS else frozenset(sorted(both, key=str)[:_MOST_READINGS])

    def propagate(edges: Sequence[RegionEdge]) -> None:
        for source, target, axes in edges:
            pairs = [(own, axis) for axis, own in enumerate(axes) if own is not None]
            places = {own: axis for own, axis in pairs if _has_place(target, axis, source, own)}
            rank = len(source.shape or ())
            known = [[n[places[a]] if a in places else None for a in range(rank)] for n in read.get(target, ())]
            enter(source, frozenset(tuple(names) for names in known if any(names)))

    nesting = rules.index.nesting
    for node in reversed(rules.index.nodes_of[graph]):
        if node in nesting:
            edges, results = list(region_edges(node)), set(node.outputs)
            propagate([each for each in edges if each[1] in results])
            for inner in nesting[node]:
                _carry_back(inner, read, rules)
            propagate([each for each in edges if each[1] not in results])
        for operand, readings in zip(node.inputs, rules.operands(node, read), strict=True):
            if operand is not None and readings:
                enter(operand, readings)


def declared_names(value: ir.Value) -> AxisNames | None:
    """The names in a graph input's declared layout, or None where it declares none that fits."""
    layout = declared_layout(value)
    return None if layout is None else tuple(None if name == "*" else name for name in layout.names)


def declared_layout(value: ir.Value) -> Layout | None:
    """The declared layout of a graph input or output, or None if there is none of its rank."""
    text = value.metadata_props.get(BOUNDARY_LAYOUT_KEY)
    layout = parsed_layout(text) if text is not None else None
    fits = layout is not None and value.shape is not None and layout.rank == len(value.shape)
    return layout if fits else None


def _agreed(names: set[str]) -> str | None:
    """The only name of an axis by its operands; a letter from an operator replaces the name of a graph input."""
    letters = {name for name in names if len(name) == 1} or names
    return next(iter(letters)) if len(letters) == 1 else None
