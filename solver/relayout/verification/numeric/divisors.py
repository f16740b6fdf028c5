"""Integers that a model divides by: onnxruntime ends the process where one is 0.

Many are extents, and so are above 0 at the sizes that are drawn. Nodes before the division check each other one, in the
graph and in the bodies of nodes: the index of a Gather is out of bounds where an element is 0, for which onnxruntime
raises an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set

import onnx
import onnx_ir as ir
from onnx import helper

from relayout.model.proto_graphs import graphs_inside
from relayout.ops.node_reader import constant_tensor
from relayout.verification.constants import constants_of
from relayout.verification.numeric.inputs import divides
from relayout.verification.numeric.symbolic_sizes import symbol_of
from relayout.verification.operator_facts import constant_ints

# Operators whose results are numbers of their first operand, or products of their operands.
_SELECTS = frozenset({"Cast", "Gather", "Identity", "Mul", "Reshape", "Slice", "Squeeze", "Unsqueeze"})

# Integers that hold every extent.
_WIDE = (ir.DataType.INT32, ir.DataType.INT64)

_NAME = "relayout_divisor"
_ERROR = re.compile(rf"Name:'{_NAME} (.*) of .*' Status Message")


def doubtful_divisions(model: ir.Model) -> dict[str, ir.DataType] | None:
    """The type of each integer that may be 0 where a node divides by it, by the name of that node's result. None where
    a type is unknown, or where a name stands for results of several such nodes."""
    doubtful = _doubtful(model)
    if not doubtful:
        return {}
    names = Counter(node.outputs[0].name for node in model.graph.all_nodes() if divides(node, 1))
    types = {str(node.outputs[0].name): _divisor(node).dtype for node in doubtful}
    known = {name: dtype for name, dtype in types.items() if dtype is not None and names[name] == 1}
    return known if len(known) == len(doubtful) else None


def check_divisors(graph: onnx.GraphProto, types: Mapping[str, ir.DataType]) -> None:
    """Insert checks before the divisions with these results, in the graph and the bodies of its nodes."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for body in graphs_inside([node]):
            check_divisors(body, types)
        if node.op_type in ("Div", "Mod") and node.domain == "" and node.output[0] in types:
            graph.node.extend(_checked(node, types[node.output[0]]))
        graph.node.append(node)


def _checked(node: onnx.NodeProto, dtype: ir.DataType) -> list[onnx.NodeProto]:
    """The nodes that compute the divisor of a node again, or raise an error."""
    by, name = node.input[1], f"{_NAME} {node.output[0]}"
    zero, zeros, wide, is_zero, index, none, checked, node.input[1] = (f"{name} {n}" for n in range(8))
    # Not all operators take all integers. 64 bits hold the bits of each.
    bits = onnx.TensorProto.INT64
    return [
        helper.make_node("Constant", [], [zero], value=helper.make_tensor(zero, bits, (), [0])),
        helper.make_node("Constant", [], [zeros], value=helper.make_tensor(zeros, bits, (1,), [0])),
        helper.make_node("Cast", [by], [wide], to=bits),
        helper.make_node("Equal", [wide, zero], [is_zero]),
        helper.make_node("Cast", [is_zero], [index], to=bits),
        helper.make_node("Gather", [zeros, index], [none], name=f"{_NAME} {by} of {node.output[0]}"),
        helper.make_node("Add", [wide, none], [checked]),
        helper.make_node("Cast", [checked], [node.input[1]], to=dtype.value),
    ]


def divided_by_zero(error: Exception) -> ZeroDivisionError | None:
    """The division by 0 of which an error of a run tells; None for any other error."""
    found = _ERROR.search(str(error))
    return ZeroDivisionError(f"an integer is divided by {found[1]}, which is 0") if found is not None else None


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
