"""Axis-name inference, independent of the solver's: the names of every value's axes, from the graph alone.

`made` are the names by a value's producer, propagated forward; `read` are those by its readers, propagated backward.
The two may differ in a sound model: a network may transpose its image, or feed its tokens as channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import onnx_ir as ir

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import BOUNDARY_LAYOUT_KEY
from relayout.verification.constants import computed_ahead
from relayout.verification.operator_facts import AxisNames, axis_names, axis_sources, is_pooled, named, with_whole_parts
from relayout.verification.subgraph_values import RegionEdge, graphs_of, region_edges

__all__ = ["AxisPaths", "Derivation", "derive", "fed", "walk"]


# Distinct readings of one value; only graphs that permute their axes on purpose have more than a few.
_MOST_READINGS = 8


class Derivation:
    """The derived names of each value's axes; values of unknown rank have no entry."""

    def __init__(self, made: Mapping[ir.Value, AxisNames], read: Mapping[ir.Value, frozenset[AxisNames]]) -> None:
        self._made, self._read = made, read

    def made(self, value: ir.Value) -> AxisNames | None:
        """The names of the value's axes by its producer."""
        return self._made.get(value)

    def read(self, value: ir.Value) -> frozenset[AxisNames]:
        """The names that readers give the value's axes: one tuple for each distinct reading."""
        return self._read.get(value, frozenset())

    def candidates(self, value: ir.Value) -> list[AxisNames]:
        """Every naming of the value with at least one name, the producer's first."""
        made = self._made.get(value)
        namings = ([made] if made else []) + sorted(self.read(value), key=str)
        return [naming for naming in namings if any(naming)]


def walk(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes in order, a node's subgraphs before the node itself."""
    for node in graph:
        for inner in graphs_of(node):
            yield from walk(inner)
        yield node


def fed(model: ir.Model) -> list[ir.Value]:
    """The graph inputs that a caller must feed: those that have no default."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def derive(
    model: ir.Model,
    given: Mapping[ir.Value, AxisNames] | None = None,
    written: Set[ir.Value] = frozenset(),
    ahead: Set[ir.Node] | None = None,
    paths: AxisPaths | None = None,
) -> Derivation:
    """Derive all names, from those `given` for graph inputs, or else from the layouts that the inputs declare.

    With given names, only the graph is used. Without, two more rules apply. A node of `relayout` names its results'
    axes by its layout attribute if no other name is known; its counterpart in another model has no such attribute.
    Operators on constants do not name axes, as a constant has the names of the data that it is combined with. For a
    node that reads no axis by name, the first rule applies only to the results in `written`. `ahead` are the operators
    on constants, and `paths` the model's, where the caller has them.
    """
    paths = paths or AxisPaths()
    constant_nodes: Set[ir.Node] = frozenset()
    if given is None:
        constant_nodes = ahead if ahead is not None else computed_ahead(model.graph)
    takes_written = given is None
    if given is None:
        given = {value: names for value in model.graph.inputs if (names := declared_names(value)) is not None}
    made: dict[ir.Value, AxisNames] = dict(given)
    _carry_forward(model.graph, (), made, constant_nodes, written if takes_written else None, paths)
    read: dict[ir.Value, frozenset[AxisNames]] = {}
    _carry_back(model.graph, read, constant_nodes, paths)
    return Derivation(made, read)


def _carry_forward(
    graph: ir.Graph,
    edges: Sequence[RegionEdge],
    made: dict[ir.Value, AxisNames],
    constant_nodes: Set[ir.Node],
    written: Set[ir.Value] | None,
    paths: AxisPaths,
) -> None:
    """Add the names of all values of the graph.

    `edges` are the region edges into it; `constant_nodes` do not name axes. `written` are the values named by the
    layout attribute of their node; None: layout attributes are not used.
    """
    for value in graph.inputs:
        if value not in made:
            _enter_from_edges(value, edges, made)
    for node in graph:
        edges = list(region_edges(node))
        for inner in graphs_of(node):
            _carry_forward(inner, edges, made, constant_nodes, written, paths)
        for m, result in enumerate(node.outputs):
            if result.shape is not None and node not in constant_nodes:
                made[result] = with_whole_parts(_forward(node, m, made, written, paths), result.shape)
                if not any(made[result]):
                    _enter_from_edges(result, edges, made)


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


def _carry_back(
    graph: ir.Graph, read: dict[ir.Value, frozenset[AxisNames]], constant_nodes: Set[ir.Node], paths: AxisPaths
) -> None:
    """Enter the names that readers give all values that the graph, and those inside it, read; `constant_nodes` name
    nothing."""

    def enter(value: ir.Value, readings: frozenset[AxisNames]) -> None:
        both = read.get(value, frozenset()) | readings
        read[value] = frozenset(sorted(both, key=str)[:_MOST_READINGS])

    def propagate(edges: Sequence[RegionEdge]) -> None:
        for source, target, axes in edges:
            pairs = [(own, axis) for axis, own in enumerate(axes) if own is not None]
            places = {own: axis for own, axis in pairs if _has_place(target, axis, source, own)}
            rank = len(source.shape or ())
            known = [[n[places[a]] if a in places else None for a in range(rank)] for n in read.get(target, ())]
            enter(source, frozenset(tuple(names) for names in known if any(names)))

    for node in reversed(graph):
        edges, results = list(region_edges(node)), set(node.outputs)
        propagate([each for each in edges if each[1] in results])
        for inner in graphs_of(node):
            _carry_back(inner, read, constant_nodes, paths)
        propagate([each for each in edges if each[1] not in results])
        facts = named(node)
        tells = facts is not None and facts.names_axes and node not in constant_nodes
        for n, operand in enumerate(node.inputs):
            if operand is not None and operand.shape is not None:
                own = axis_names(node, "input", n) if tells else None
                enter(operand, _backward(node, n, own, read, paths))


def declared_names(value: ir.Value) -> AxisNames | None:
    """The names in a graph input's declared layout, or None where it declares none that fits."""
    layout = declared_layout(value)
    return None if layout is None else tuple(None if name == "*" else name for name in layout.names)


def declared_layout(value: ir.Value) -> Layout | None:
    """The declared layout of a graph input or output, or None if there is none of its rank."""
    text = value.metadata_props.get(BOUNDARY_LAYOUT_KEY)
    if text is None or value.shape is None:
        return None
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError:
        return None
    return layout if layout.rank == len(value.shape) else None


def _forward(
    node: ir.Node, m: int, made: Mapping[ir.Value, AxisNames], written: Set[ir.Value] | None, paths: AxisPaths
) -> AxisNames:
    rank, facts = len(node.outputs[m].shape or ()), named(node)
    own = (axis_names(node, "result", m) if facts is not None else None) or (None,) * rank
    channels_only = node.op_type in _CHANNELS_ONLY
    if facts is not None and facts.names_axes and not channels_only and all(own):
        return own
    known: list[set[str]] = [set() for _ in range(rank)]
    for n, operand in enumerate(node.inputs):
        names = made.get(operand) if operand is not None else None
        sources = paths.of(node, n, m) if names else None
        for axis, source in enumerate(sources or ()):
            if names and source is not None and (name := names[source]) is not None:
                known[axis].add(name)
    carried = [_agreed(names) for names in known]
    if facts is None or facts.pooled:
        return tuple(carried)
    if not facts.names_axes:
        is_told = node.outputs[m] in (written or ()) and not any(carried) and None not in own
        return own if is_told else tuple(carried)
    if channels_only:
        # It reads the channels alone by name; the operand names the rest.
        rest = own if written is not None else (None,) * rank
        rest_names = (theirs or written for theirs, written in zip(carried, rest, strict=True))
        return tuple(mine if mine == "C" else other for mine, other in zip(own, rest_names, strict=True))
    return tuple(mine or theirs for mine, theirs in zip(own, carried, strict=True))


def _names_axes(node: ir.Node) -> bool:
    facts = named(node)
    return facts is None or facts.names_axes


def _agreed(names: set[str]) -> str | None:
    """The only name of an axis by its operands; a letter from an operator replaces the name of a graph input."""
    letters = {name for name in names if len(name) == 1} or names
    return next(iter(letters)) if len(letters) == 1 else None


def _backward(
    node: ir.Node,
    n: int,
    own: AxisNames | None,
    read: Mapping[ir.Value, frozenset[AxisNames]],
    paths: AxisPaths,
) -> frozenset[AxisNames]:
    """The names of the n-th operand by the node itself (`own`), if any, and by the readers of its results."""
    operand = node.inputs[n]
    rank = len(operand.shape or ()) if operand is not None else 0
    readings = {own} if own is not None else set()
    if own is not None and all(own):
        return frozenset(readings)
    for m, result in enumerate(node.outputs):
        sources = paths.of(node, n, m) if read.get(result) else None
        for names in read.get(result, ()) if sources is not None else ():
            carried: list[str | None] = list(own) if own is not None else [None] * rank
            for axis, source in enumerate(sources or ()):
                if source is not None:
                    carried[source] = carried[source] or names[axis]
            readings.add(tuple(carried))
    return frozenset(reading for reading in readings if any(reading))


# They read their channels by name and pass every axis on.
_CHANNELS_ONLY = frozenset({"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN"})


class AxisPaths:
    """The axes that the operators of a model pass on, each computed once: the model must not change in between."""

    def __init__(self) -> None:
        self._found: dict[tuple[ir.Node, int, int], tuple[int | None, ...] | None] = {}

    def of(self, node: ir.Node, n: int, m: int) -> tuple[int | None, ...] | None:
        """For each axis of the m-th result, the axis of the n-th input that it is, also where the operator names some
        axes itself; None as a whole where that is unknown."""
        key = node, n, m
        if key not in self._found:
            self._found[key] = _passes(node, n, m)
        return self._found[key]


def _passes(node: ir.Node, n: int, m: int) -> tuple[int | None, ...] | None:
    if node.op_type not in _CHANNELS_ONLY and _names_axes(node):
        return axis_sources(node, n, m)
    source, result = node.inputs[n], node.outputs[m]
    if n or m or source is None or source.shape is None or result.shape is None:
        return None
    before, after = axis_names(node, "input", 0) or (), axis_names(node, "result", 0) or ()
    if None not in before and sorted(map(str, before)) == sorted(map(str, after)):
        sources = tuple(before.index(name) for name in after)
    elif len(source.shape) == len(result.shape):
        sources = tuple(range(len(result.shape)))
    else:
        return None
    # A reader may give an axis of extent 1 any name. The axis that it broadcasts to, or is reduced from, is another,
    # and its name must not pass to an operator that does not know that the extent is 1.
    units = [(axis, source.shape[axis] == 1, extent == 1) for axis, extent in zip(sources, result.shape, strict=True)]
    pooled = is_pooled(node)
    return tuple(
        None if (before and not after) or (pooled and after and not before) else axis for axis, before, after in units
    )
