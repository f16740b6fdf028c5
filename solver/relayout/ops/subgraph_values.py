"""Region edges: values that cross into or out of the graphs inside an If, a Loop or a Scan.

A value has one memory format on both sides: the results of an If are those of its branches, the state of a Loop is
carried from one iteration to the next. A scanned input or output has one axis more outside than inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from relayout.layout.memory_format import Extent
from relayout.ops.node_reader import NodeSnapshot, NoRuleError, Reading, extents_of, normal_axis
from relayout.ops.rule import Axes, Free, free

# The members of an enum are slow to look up.
_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
# Before this opset Scan has a batch axis and no axis attributes.
_SCAN_WITHOUT_BATCH = 9


class RegionPort(Struct, frozen=True):
    """One input or result of a node (`graph` is None), or one input or output of a graph inside it."""

    graph: ir.Graph | None
    index: int


class RegionEdge(Struct, frozen=True, eq=False):
    """One value that crosses the border of the graphs inside a node.

    `rule` has the values read as its inputs and those produced as its outputs. `reads` are inputs of the node and
    outputs of the graphs inside; `gives` are inputs of those graphs and results of the node. `outer_axis`: the axis of
    the rule's space that exists only outside. `scanned`: the attribute of a Scan with the position of that axis, the
    index of the entry, and the number of entries.
    """

    name: str
    rule: Free
    reads: tuple[RegionPort, ...]
    gives: tuple[RegionPort, ...]
    scanned: tuple[str, int, int] | None = None
    outer_axis: int | None = None

    @property
    def goes_in(self) -> bool:
        """Whether the value enters the graphs inside."""
        return any(region_port.graph is not None for region_port in self.gives)


def graphs_of(node: ir.Node) -> Sequence[ir.Graph]:
    """The graphs in the node's attributes."""
    # Nearly every pass asks every node; the dict inside is read faster than through the mapping.
    attributes = node.attributes.data
    return _graphs_in(attributes) if attributes else ()


def _graphs_in(attributes: Mapping[str, ir.Attr]) -> Sequence[ir.Graph]:
    found: Sequence[ir.Graph] = ()
    for attribute in attributes.values():
        kind = attribute.type
        if kind is _GRAPH and not attribute.is_ref():
            found = (*found, attribute.as_graph())
        elif kind is _GRAPHS and not attribute.is_ref():
            found = (*found, *attribute.as_graphs())
    return found


def nested_graphs(graph: ir.Graph) -> list[ir.Graph]:
    """The graph and the graphs inside it, each before those inside it."""
    found = [graph]
    for node in graph:
        for inner in graphs_of(node):
            found += nested_graphs(inner)
    return found


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of the graph in its order, each before those of the graphs inside it."""
    for node in graph:
        yield node
        if attributes := node.attributes.data:
            for inner in _graphs_in(attributes):
                yield from all_nodes(inner)


def region_edges_of(node: ir.Node, opset: int, is_constant: Callable[[ir.Value], bool]) -> tuple[RegionEdge, ...]:
    """Every region edge of an If, Loop or Scan whose values have known ranks; other values are as in the source."""
    ways = {"If": _of_if, "Loop": _of_loop, "Scan": _of_scan}
    build = ways.get(node.op_type) if node.domain == "" else None
    if build is None:
        return ()
    try:
        found = [_region_edge(node, sketch, is_constant) for sketch in build(Reading(NodeSnapshot.of(node), opset))]
    except NoRuleError:
        return ()
    return tuple(region_edge for region_edge in found if region_edge is not None)


class _Sketch(Struct, frozen=True):
    """A region edge before its ranks are known. `outer_axis` exists only outside; if it `leads`, it stays first."""

    name: str
    reads: Sequence[RegionPort]
    gives: Sequence[RegionPort]
    outer_axis: int | None = None
    leads: bool = False
    scanned: tuple[str, int, int] | None = None


def _of_if(reading: Reading) -> Iterator[_Sketch]:
    branches = _graphs_in(reading.node.attributes)
    for index in range(min(len(reading.node.outputs), *(len(branch.outputs) for branch in branches))):
        yield _Sketch(f"result {index}", [RegionPort(branch, index) for branch in branches], [RegionPort(None, index)])


def _of_loop(reading: Reading) -> Iterator[_Sketch]:
    (body,) = _graphs_in(reading.node.attributes)
    if len(reading.node.inputs) != len(body.inputs) or len(reading.node.outputs) != len(body.outputs) - 1:
        return
    states = len(body.inputs) - 2
    for index in range(states):
        yield _state(body, index, first_input=2, first_output=1)
    for index in range(states, len(body.outputs) - 1):
        reads, gives = [RegionPort(body, index + 1)], [RegionPort(None, index)]
        yield _Sketch(f"scan result {index - states}", reads, gives, 0, leads=True)


def _of_scan(reading: Reading) -> Iterator[_Sketch]:
    node = reading.node
    (body,) = _graphs_in(node.attributes)
    states = len(node.inputs) - reading.integer("num_scan_inputs")
    fits = len(body.inputs) == len(node.inputs) and len(body.outputs) == len(node.outputs) >= states
    if reading.opset < _SCAN_WITHOUT_BATCH or not fits:
        return
    for index in range(states):
        yield _state(body, index, first_input=0, first_output=0)
    for word, count in (("input", len(node.inputs) - states), ("output", len(node.outputs) - states)):
        attribute = f"scan_{word}_axes"
        for place, axis in enumerate(reading.ints(attribute) or (0,) * count):
            outside, inside = [RegionPort(None, states + place)], [RegionPort(body, states + place)]
            reads, gives = (outside, inside) if word == "input" else (inside, outside)
            yield _Sketch(f"scan {word} {place}", reads, gives, axis, scanned=(attribute, place, count))


def _state(body: ir.Graph, index: int, *, first_input: int, first_output: int) -> _Sketch:
    """A loop-carried value: from the node's input into the graph, into the next iteration, and to the node's result."""
    reads = [RegionPort(None, first_input + index), RegionPort(body, first_output + index)]
    return _Sketch(f"state {index}", reads, [RegionPort(body, first_input + index), RegionPort(None, index)])


def _region_edge(node: ir.Node, sketch: _Sketch, is_constant: Callable[[ir.Value], bool]) -> RegionEdge | None:
    """The region edge, if the ranks of all its values agree."""
    # A result without consumers may have no name and no type.
    gives = [port for port in sketch.gives if port.graph is not None or node.outputs[port.index].name]
    read, given = read_at(node, sketch.reads), given_at(node, gives)
    members = [*zip(sketch.reads, read, strict=True), *zip(gives, given, strict=True)]
    rank = _rank(members, sketch.outer_axis)
    if rank is None or not given:
        return None
    outer = normal_axis(sketch.outer_axis, rank) if sketch.outer_axis is not None else None
    every = tuple(range(rank))
    inner = tuple(axis for axis in every if axis != outer)
    inputs, outputs = (
        tuple(every if port.graph is None else inner for port in ports) for ports in (sketch.reads, gives)
    )
    extents, whole = _extents(rank, zip((*inputs, *outputs), (*read, *given), strict=True))
    cut = tuple(axis for axis in inner if axis in whole)
    rule = free(
        extents,
        inputs,
        outputs,
        allows=lambda order: not sketch.leads or order[0] == outer,
        tileable=cut,
        zero_preserving=() if any(value is not None and is_constant(value) for value in read) else cut,
    )
    return RegionEdge(sketch.name, rule, tuple(sketch.reads), tuple(gives), sketch.scanned, outer)


def read_at(node: ir.Node, region_ports: Sequence[RegionPort]) -> list[ir.Value | None]:
    """Inputs of the node, and outputs of the graphs inside it."""
    return [(node.inputs if port.graph is None else port.graph.outputs)[port.index] for port in region_ports]


def given_at(node: ir.Node, region_ports: Sequence[RegionPort]) -> list[ir.Value]:
    """Results of the node, and inputs of the graphs inside it."""
    return [(node.outputs if port.graph is None else port.graph.inputs)[port.index] for port in region_ports]


def _rank(members: Sequence[tuple[RegionPort, ir.Value | None]], outer_axis: int | None) -> int | None:
    """The rank outside; None where the members disagree."""
    found: set[int] = set()
    for region_port, value in members:
        if value is None or value.shape is None or not isinstance(value.type, ir.TensorType | None):
            return None
        found.add(len(value.shape) + (outer_axis is not None and region_port.graph is not None))
    return found.pop() if len(found) == 1 else None


def _extents(rank: int, members: Iterable[tuple[Axes, ir.Value | None]]) -> tuple[tuple[Extent, ...], frozenset[int]]:
    """The extent of each axis, None if it may change between iterations, and the axes of one extent in all members."""
    said: list[set[Extent]] = [set() for _ in range(rank)]
    for axes, value in members:
        for axis, extent in zip(axes, extents_of(value) or (), strict=True):
            said[axis].add(extent)
    extents = tuple(each.pop() if len(each) == 1 else None for each in said)
    return extents, frozenset(axis for axis, extent in enumerate(extents) if extent is not None)
