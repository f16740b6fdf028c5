"""Region edges of If, Loop and Scan: the values outside and inside a nested graph that are one and the same.

The edges are read off ONNX's definitions of the three operators, and off nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from relayout.ops import graphs_of

Nesting = Mapping[ir.Node, Sequence[ir.Graph]]
"""The graphs inside each node that has any. To ask every node for its graphs takes as long as a check does."""

RegionEdge = tuple[ir.Value, ir.Value, tuple[int | None, ...]]
"""The value at each end, and for each axis of the second the axis of the first that it is."""


def nesting_of(graph: ir.Graph) -> Nesting:
    """The nesting of a graph, at all depths; an outer node comes before those inside it."""
    found: dict[ir.Node, Sequence[ir.Graph]] = {}
    for node in graph:
        if inside := graphs_of(node):
            found[node] = inside
            for inner in inside:
                found.update(nesting_of(inner))
    return found


def walk(graph: ir.Graph, nesting: Nesting | None = None) -> Iterator[ir.Node]:
    """Nodes in order, a node's subgraphs before the node itself."""
    nesting = nesting_of(graph) if nesting is None else nesting
    for node in graph:
        for inner in nesting.get(node, ()):
            yield from walk(inner, nesting)
        yield node


def region_edges(node: ir.Node) -> Iterator[RegionEdge]:
    """Every region edge, those into the graphs first, of values whose ranks are known and fit."""
    if node.op_type not in ("If", "Loop", "Scan") or node.domain != "":
        return
    graphs = graphs_of(node)
    if node.op_type == "If":
        for branch in graphs:
            yield from _same_axes(branch.outputs, node.outputs)
    elif node.op_type == "Loop" and len(graphs) == 1:
        body, states = graphs[0], len(graphs[0].inputs) - 2
        yield from _same_axes(node.inputs[2:], body.inputs[2:])
        yield from _same_axes(body.outputs[1 : states + 1], body.inputs[2:])
        yield from _same_axes(body.outputs[1 : states + 1], node.outputs)
        for inner, outer in zip(body.outputs[states + 1 :], node.outputs[states:], strict=False):
            yield from _stacked(inner, outer, 0)
    elif node.op_type == "Scan" and len(graphs) == 1:
        yield from _of_scan(node, graphs[0])


def _of_scan(node: ir.Node, body: ir.Graph) -> Iterator[RegionEdge]:
    scanned = node.attributes.get_int("num_scan_inputs", len(node.inputs))
    states = len(node.inputs) - (scanned or 0)
    yield from _same_axes(node.inputs[:states], body.inputs[:states])
    yield from _same_axes(body.outputs[:states], body.inputs[:states])
    yield from _same_axes(body.outputs[:states], node.outputs[:states])
    inward = node.attributes.get_ints("scan_input_axes") or (0,) * len(node.inputs)
    for outer, inner, axis in zip(node.inputs[states:], body.inputs[states:], inward, strict=False):
        if outer is not None:
            yield from _sliced(outer, inner, axis)
    outward = node.attributes.get_ints("scan_output_axes") or (0,) * len(node.outputs)
    for inner, outer, axis in zip(body.outputs[states:], node.outputs[states:], outward, strict=False):
        yield from _stacked(inner, outer, axis)


def _same_axes(sources: Sequence[ir.Value | None], targets: Sequence[ir.Value]) -> Iterator[RegionEdge]:
    for source, target in zip(sources, targets, strict=False):
        if source is None or source.shape is None or target.shape is None or len(source.shape) != len(target.shape):
            continue
        yield source, target, tuple(range(len(source.shape)))


def _sliced(outer: ir.Value, inner: ir.Value, axis: int) -> Iterator[RegionEdge]:
    if outer.shape is not None and inner.shape is not None and len(outer.shape) == len(inner.shape) + 1:
        rank = len(outer.shape)
        yield outer, inner, tuple(a for a in range(rank) if a != axis % rank)


def _stacked(inner: ir.Value, outer: ir.Value, axis: int) -> Iterator[RegionEdge]:
    if outer.shape is not None and inner.shape is not None and len(outer.shape) == len(inner.shape) + 1:
        rank = len(outer.shape)
        own = axis % rank
        yield inner, outer, tuple(None if a == own else a - (a > own) for a in range(rank))
