"""The effect of a `relayout::` operator's body on a tiled or padded operand, observed on an array of positions.

The effect of Transposes, Reshapes, Pads and Slices together is not derived but executed. The operand is filled with
distinct numbers, onnx's reference evaluator runs the nodes between it and the standard operator, and each number must
come out at the index that the layout gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.model.dims.lone_nodes import evaluated_alone
from relayout.verification.memory_format import Atom, MemoryFormat
from relayout.verification.operator_facts import AxisNames

MOVES = frozenset(
    """
    Cast Concat Constant Div Gather Identity Mul Pad ReduceProd Reshape Shape Slice Squeeze Transpose Unsqueeze
    """.split()
)
"""The operators that a body may have besides its own; none of them computes new values. A Cast is only for constants,
which are floats in old opsets."""

# Larger arrays are shrunk along axes that the layout does not tile.
_MOST_PLACES = 1 << 23
# Extents for axes of unknown extent.
_SMALL = (2, 3, 5, 7, 4, 6, 8, 9)

_OTHER_ORDER = "another order of the elements"
_NOT_RUN = "not tried"

Array = np.ndarray[Any, Any]


def operand_format(
    layout: Layout, axes: AxisNames, extents: Sequence[int | None], *, exact: bool
) -> tuple[MemoryFormat, tuple[int, ...]] | None:
    """The memory format of an operand in this layout relative to `axes`, the operator's own, and extents that fit.

    `extents` are the operand's, in its layout; None, and large ones where not `exact`, are chosen. None as a whole
    where the layout does not name these axes once each, or splits one of them into more than two.
    """
    names = layout.names
    outer = [i for i in range(layout.rank) if layout.outer(i) is None]
    if len(extents) != layout.rank or sorted(names[i] for i in outer) != sorted(map(str, axes)):
        return None
    inner = {names[place]: i for i in range(layout.rank) if (place := layout.outer(i)) is not None}
    if len(inner) != layout.rank - len(outer):
        return None
    atoms: list[Atom | None] = [None] * layout.rank
    sizes = [0] * len(axes)
    for number, i in enumerate(outer):
        axis, place = axes.index(names[i]), inner.get(names[i])
        tile = (layout.tile(place) if place is not None else 1) or 0
        zeros = int(layout.attribute(i, "pad") or 0)
        extent = extents[i]
        if extent is None or (not exact and place is None and not zeros):
            extent = min(extent or _SMALL[number], _SMALL[number]) + (zeros if extent is None else 0)
        is_other_tile = place is not None and extents[place] not in (tile, None)
        if not tile or is_other_tile or (zeros and extent * tile <= zeros):
            return None
        sizes[axis] = extent * tile - zeros
        reach = extent * tile if zeros else 0
        atoms[i] = Atom(axis, tile, reach)
        if place is not None:
            atoms[place] = Atom(axis, 1, tile)
    # Tiles of one element have no position.
    units = [atom is None or atom.inner == atom.outer for atom in atoms]
    groups = [() if unit or atom is None else (atom,) for atom, unit in zip(atoms, units, strict=True)]
    return MemoryFormat(tuple(groups)), tuple(sizes)


def fault_in_body(
    start: ir.Value, end: ir.Value, layout: Layout, axes: AxisNames, extents: Sequence[int | None], *, opset: int
) -> str | None:
    """The fault of the path from `start` to `end` in a body; None where it is right.

    One of the two is in `layout`, with `extents`, and the other in the operator's own format, with `axes`: where
    `start` is an input of the body the path leads into the operator, else out of it.
    """
    # Two axes of extent 1 could be swapped without a difference, and so could all axes of an empty operand. Only at the
    # operand's own size does it show whether the path takes an extent of 0 for a dimension to copy.
    longer = _longer(layout, extents)
    fault = _try(start, end, layout, axes, longer, opset) if longer != tuple(extents) else _NOT_RUN
    is_enough = fault == _OTHER_ORDER or (fault is None and 0 not in extents)
    return fault if is_enough else _try(start, end, layout, axes, extents, opset)


def _longer(layout: Layout, extents: Sequence[int | None]) -> tuple[int | None, ...]:
    if len(extents) != layout.rank:
        return tuple(extents)
    fixed = [layout.outer(i) is not None or layout.attribute(i, "pad") is not None for i in range(layout.rank)]
    return tuple(2 if extent in (0, 1) and not keep else extent for extent, keep in zip(extents, fixed, strict=True))


def _try(
    start: ir.Value, end: ir.Value, layout: Layout, axes: AxisNames, extents: Sequence[int | None], opset: int
) -> str | None:
    names, is_input = (str(start.name), str(end.name)), start.producer() is None
    nodes = _between(start, end)
    written = None if nodes is None else tuple([ir.serde.serialize_node(node).SerializeToString() for node in nodes])
    return _fault(_Way(written, names, opset), layout, axes, tuple(extents), is_input)


class _Way(NamedTuple):
    """The nodes between two values of a body, by their names, written; None where other values contribute."""

    nodes: tuple[bytes, ...] | None
    names: tuple[str, str]
    opset: int


@lru_cache(maxsize=1024)
def _fault(way: _Way, layout: Layout, axes: AxisNames, extents: tuple[int | None, ...], is_input: bool) -> str | None:
    """The fault of a way from or to an operand in `layout`. Networks, and the legal models of one backend, have the
    same bodies."""
    size = math.prod(extent or 8 for extent in extents)
    found = operand_format(layout, axes, extents, exact=size <= _MOST_PLACES)
    if found is None:
        return f"no operand of shape {_shown(extents)}"
    format_, sizes = found
    native = np.arange(1, math.prod(sizes) + 1, dtype=np.int64).reshape(sizes)
    laid = format_.of(native)
    if laid is None:
        return f"no operand of shape {_shown(extents)}"
    given, expected = (laid, native) if is_input else (native, laid)
    if way.nodes is None:
        return "something else"
    try:
        result = _run(way, given)
    except Exception as error:  # a wrong body may raise anything
        return " ".join(str(error).split())[:200] or type(error).__name__
    if result.shape != expected.shape:
        return f"shape {list(result.shape)} in place of {list(expected.shape)}"
    return None if np.array_equal(result, expected) else _OTHER_ORDER


def _run(way: _Way, array: Array) -> Array:
    """The last value of a way, for the `array` at its start."""
    if not way.nodes:
        return array
    start, end = way.names
    nodes = map(onnx.NodeProto.FromString, way.nodes)
    (result,) = evaluated_alone(nodes, {start: array}, [end], [onnx.helper.make_opsetid("", way.opset)])
    return result


def _between(start: ir.Value, end: ir.Value) -> list[ir.Node] | None:
    """The nodes from one value to another in order, all of them moves; None where there are others, or other values."""
    nodes: dict[ir.Node, None] = {}
    pending: list[tuple[ir.Value, bool]] = [(end, False)]
    while pending:
        value, is_done = pending.pop()
        node = value.producer()
        if value is start or node in nodes:
            continue
        if node is None or node.op_type not in MOVES or node.domain != "":
            return None
        if node.op_type == "Cast" and not _is_constant(node.inputs[0]):
            return None
        if is_done:
            nodes[node] = None
            continue
        pending.append((value, True))
        pending += [(operand, False) for operand in node.inputs if operand is not None]
    return list(nodes)


def _is_constant(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "Constant"


def _shown(extents: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if extent is None else str(extent) for extent in extents) + "]"
