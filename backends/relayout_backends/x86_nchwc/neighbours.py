"""The producers and readers of values, without the view ops between.

View ops are gone in the written model, and the cost of a legal model must be that of its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import onnx_ir as ir

from relayout.model.constants import known_result

_MOVES = frozenset(
    {
        "DepthToSpace",
        "Dropout",
        "Flatten",
        "Identity",
        "Reshape",
        "SpaceToDepth",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


def maker(value: ir.Value | None) -> ir.Node | None:
    """The node that computes the data of `value`; None where that is an input or a constant."""
    node = value.producer() if value is not None else None
    while node is not None and _moves(node):
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    return node


def readers(value: ir.Value) -> list[ir.Node | None]:
    """The nodes that compute with the data of `value`, each as often as it reads it; None is an output of the graph.

    A node that asks only for known extents does not count as a reader.
    """
    found: list[ir.Node | None] = []
    pending = [value]
    while pending:
        current = pending.pop()
        found += [None] if current.is_graph_output() else []
        for node, index in current.uses():
            if _moves(node) and index == 0:
                pending.append(node.outputs[0])
            elif _moves(node) or not _asks_for_known(node):
                found.append(node)
    return found


def views_between(value: ir.Value, view: ir.Value | None) -> list[ir.Node] | None:
    """The view ops that make `view` of `value`, first to last; None where it is no view of it."""
    found: list[ir.Node] = []
    while view is not value:
        node = view.producer() if view is not None else None
        if node is None or not _moves(node):
            return None
        found.append(node)
        view = node.inputs[0]
    return found[::-1]


def dims_along(value: ir.Value, axis: int, views: Iterable[ir.Node]) -> set[int] | None:
    """The dimensions that are this axis in the result of `views` of `value`, counted from the last one, -1; None where
    others are a part of it, or where that is not known. Axes count likewise, and dimensions of one element are none."""
    current, dims = value, {axis}
    for view in views:
        result = view.outputs[0]
        if current.shape is None or result.shape is None or view.op_type in ("DepthToSpace", "SpaceToDepth"):
            return None
        if view.op_type == "Transpose":
            rank = len(result.shape)
            perm = view.attributes.get_ints("perm", tuple(reversed(range(rank)))) or ()
            dims = {place - rank for place, source in enumerate(perm) if source - rank in dims}
        else:
            # The elements of a view lie in the same order: a dimension is a range of strides.
            ranges = [steps for place, steps in _strides(current.shape).items() if place in dims]
            found = {
                place
                for place, (start, end) in _strides(result.shape).items()
                if any(first <= start and end <= last for first, last in _joined(ranges))
            }
            if len(ranges) < len(dims) or _count(result.shape, found) != _count(current.shape, dims):
                return None
            dims = found
        current = result
    return dims


def _strides(shape: ir.Shape) -> dict[int, tuple[int, int]]:
    """The strides of each dimension of more than one element, and of the one before it; without those that a dimension
    of unknown extent precedes."""
    found: dict[int, tuple[int, int]] = {}
    stride = 1
    for place in range(-1, -len(shape) - 1, -1):
        extent = shape[place]
        if not isinstance(extent, int) or extent == 0:
            break
        if extent > 1:
            found[place] = (stride, stride * extent)
        stride *= extent
    return found


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """These ranges, each with those that follow it directly."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end))
    return found


def _count(shape: ir.Shape, dims: Iterable[int]) -> int:
    return prod(extent for place in dims if isinstance(extent := shape[place], int))


def _moves(node: ir.Node) -> bool:
    return node.op_type in _MOVES and node.domain in ("", "relayout")


def _asks_for_known(node: ir.Node) -> bool:
    """Whether the results of the node, or of all that read it, are known: the node is not in the legal model."""
    if known_result(node) is not None:
        return True
    if node.op_type != "Shape" or node.domain != "" or node.outputs[0].is_graph_output():
        return False
    return all(known_result(reader) is not None for reader, _ in node.outputs[0].uses())
