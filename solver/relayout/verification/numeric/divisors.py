"""Integers that a model divides by: onnxruntime ends the process where one is 0.

Many are extents, and so are above 0 at the sizes that are drawn. The others are watched: they are results of the run, 1
is in place of 0 where they divide, and a 0 is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from relayout.ops.node_reader import constant_tensor
from relayout.verification.constants import constants_of
from relayout.verification.numeric.inputs import divides
from relayout.verification.numeric.symbolic_sizes import symbol_of
from relayout.verification.operator_facts import constant_ints

__all__ = ["can_be_watched", "check", "watch", "watched"]

# Operators whose results are numbers of their first operand, or products of their operands.
_SELECTS = frozenset({"Cast", "Gather", "Identity", "Mul", "Reshape", "Slice", "Squeeze", "Unsqueeze"})

# Integers that hold every extent; onnxruntime has all operators of the watch for them.
_WIDE = (ir.DataType.INT32, ir.DataType.INT64)

_NAME = "relayout_divisor"


def can_be_watched(model: ir.Model) -> bool:
    """Whether a run would show each divisor that may be 0: those inside nodes and in eight bits are not shown."""
    outside = set(model.graph)
    return all(node in outside and _divisor(node).dtype in _WIDE for node in _doubtful(model))


def watched(model: ir.Model) -> dict[str, ir.DataType]:
    """The type of each integer that may be 0 where a node of the graph divides by it, by name."""
    outside = set(model.graph)
    divisors = [_divisor(node) for node in _doubtful(model) if node in outside]
    return {str(value.name): value.dtype for value in divisors if value.dtype in _WIDE}


def watch(proto: onnx.ModelProto, divisors: Mapping[str, ir.DataType]) -> None:
    """Divide by d + (d == 0) in place of d, for each of these d of the graph."""
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    safe: dict[str, str] = {}
    for node in nodes:
        is_division = node.op_type in ("Div", "Mod") and node.domain == ""
        by = node.input[1] if is_division else ""
        if by in divisors:
            if by not in safe:
                safe[by] = f"{_NAME}_{len(safe)}"
                proto.graph.node.extend(_without_zeros(by, divisors[by], safe[by]))
            node.input[1] = safe[by]
        proto.graph.node.append(node)


def _without_zeros(by: str, dtype: ir.DataType, safe: str) -> list[onnx.NodeProto]:
    zero = helper.make_tensor(f"{safe}_zero", dtype.value, (), [0])
    return [
        helper.make_node("Constant", [], [zero.name], value=zero),
        helper.make_node("Equal", [by, zero.name], [f"{safe}_is_zero"]),
        helper.make_node("Cast", [f"{safe}_is_zero"], [f"{safe}_one"], to=dtype.value),
        helper.make_node("Add", [by, f"{safe}_one"], [safe]),
    ]


def check(divisors: Iterable[str], results: Mapping[str, Any]) -> None:
    """Raise ZeroDivisionError if a run divided by 0: what it gave has no meaning."""
    for name in divisors:
        if not np.all(results[name]):
            raise ZeroDivisionError(f"an integer is divided by {name}, which is 0")


def _divisor(node: ir.Node) -> ir.Value:
    by = node.inputs[1]
    if by is None:
        raise ValueError(f"{node.name} divides by nothing")
    return by


def _doubtful(model: ir.Model) -> list[ir.Node]:
    """The nodes that divide an integer by a computed one, which may be 0."""
    dividing = [node for node in model.graph.all_nodes() if divides(node, 1)]
    if not dividing:
        return []
    constants = constants_of(model.graph)
    # The sizes that are drawn for dims of inputs are above 0.
    dims = {symbol_of(value, axis) for value in model.graph.inputs for axis in range(len(value.shape or ()))}

    def is_doubtful(by: ir.Value) -> bool:
        is_integer = by.dtype is None or by.dtype.is_integer()
        return is_integer and not (by.is_graph_input() or by in constants or _is_extent(by, dims))

    return [node for node in dividing if is_doubtful(_divisor(node))]


def _is_extent(value: ir.Value | None, dims: Set[str]) -> bool:
    """Whether its numbers are positive extents or among `dims`, or products of such extents and positive constants."""
    known = constant_tensor(value) if value is not None else None
    if known is not None:
        return bool((known.numpy() > 0).all())
    node = value.producer() if value is not None else None
    if node is None or not node.inputs or node.domain != "":
        return False
    if node.op_type == "Cast" and node.outputs[0].dtype not in _WIDE:
        return False  # 256 is 0 in eight bits
    source = node.inputs[0]
    if node.op_type == "Shape":
        return source is not None and _are_drawn(source, dims)
    reading = source.producer() if source is not None else None
    if node.op_type == "Gather" and reading is not None and reading.op_type == "Shape" and not reading.attributes:
        places = constant_ints(node, "", 1)
        return reading.inputs[0] is not None and places is not None and _are_drawn(reading.inputs[0], dims, places)
    return node.op_type in _SELECTS and all(
        _is_extent(each, dims) for each in (node.inputs if node.op_type == "Mul" else [source])
    )


def _are_drawn(value: ir.Value, dims: Set[str], places: Iterable[int] | None = None) -> bool:
    """Whether the extents at `places`, or all of them, are positive numbers or dims of inputs."""
    if value.shape is None:
        return False
    rank = len(value.shape)
    chosen = range(rank) if places is None else places
    if any(not -rank <= place < rank for place in chosen):
        return False
    extents = [value.shape[place] for place in chosen]
    if value.is_graph_input():
        return 0 not in extents
    return all(extent > 0 if isinstance(extent, int) else extent.value in dims for extent in extents)
