"""Guards: onnxruntime ends the process where an integer is divided by 0, and where a Scan goes over no elements.

Many of these numbers are extents, and so are above 0 at the sizes that are drawn. Nodes before the operator check the
others, in the graph and in the bodies of nodes: the index of a Gather is out of bounds where a number is 0, for which
onnxruntime raises an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

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

_BITS = onnx.TensorProto.INT64

# Integers that hold every extent.
_WIDE = (ir.DataType.INT32, ir.DataType.INT64)

_NAME = "relayout_guard"
_ERROR = re.compile(rf"Name:'{_NAME} (Div|Mod|Scan) (.*) of .*' Status Message")

_BATCHED = 8
"""The version of ONNX's operators in which a Scan has a batch before the axis that it goes over."""


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


def doubtful_scans(model: ir.Model) -> frozenset[str]:
    """The first results of the Scans that may go over no elements."""
    opset = model.opset_imports.get("", 1)
    dims = _drawn_dims(model)
    return frozenset(
        str(node.outputs[0].name)
        for node in model.graph.all_nodes()
        if node.op_type == "Scan" and node.domain == ""
        if not all(
            value is not None and _are_drawn(value, dims, [axis])
            for value, axis in _scanned(node.inputs, node.attributes, opset)
        )
    )


def guard(graph: onnx.GraphProto, divisors: Mapping[str, ir.DataType], scans: Set[str], opset: int) -> None:
    """Insert checks before the divisions and the Scans with these results, in the graph and the bodies of its nodes."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for body in graphs_inside([node]):
            guard(body, divisors, scans, opset)
        if node.domain == "" and node.output[:1]:
            result = node.output[0]
            if node.op_type in ("Div", "Mod") and result in divisors:
                graph.node.extend(_checked_divisor(node, divisors[result]))
            elif node.op_type == "Scan" and result in scans:
                graph.node.extend(_checked_scan(node, opset))
        graph.node.append(node)


def _checked_divisor(node: onnx.NodeProto, dtype: ir.DataType) -> list[onnx.NodeProto]:
    """The nodes that compute the divisor of a node again, or raise an error."""
    by, name = node.input[1], f"{_NAME} {node.output[0]}"
    # Not all operators take all integers. 64 bits hold the bits of each.
    wide, checked, node.input[1] = (f"{name} {part}" for part in ("wide", "checked", "divisor"))
    return [
        helper.make_node("Cast", [by], [wide], to=_BITS),
        *_without_zeros(wide, checked, f"{_NAME} {node.op_type} {by} of {node.output[0]}"),
        helper.make_node("Cast", [checked], [node.input[1]], to=dtype.value),
    ]


def _checked_scan(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """The nodes that reshape each tensor that a Scan goes over to its own shape, or raise an error."""
    found: list[onnx.NodeProto] = []
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    first = len(node.input) - attributes["num_scan_inputs"]
    axes = attributes.get("scan_input_axes") or [int(opset <= _BATCHED)] * attributes["num_scan_inputs"]
    for place, axis in enumerate(axes, first):
        read, name = node.input[place], f"{_NAME} {node.output[0]} {place}"
        axis_, shape, extent, checked, none, same, node.input[place] = (f"{name} {n}" for n in range(7))
        found += [
            helper.make_node("Shape", [read], [shape]),
            helper.make_node("Constant", [], [axis_], value=helper.make_tensor(axis_, _BITS, (1,), [axis])),
            helper.make_node("Gather", [shape, axis_], [extent]),
            *_without_zeros(extent, checked, f"{_NAME} Scan {read} of {node.output[0]}"),
            helper.make_node("Sub", [checked, extent], [none]),
            helper.make_node("Add", [shape, none], [same]),
            helper.make_node("Reshape", [read, same], [node.input[place]]),
        ]
    return found


def _without_zeros(read: str, result: str, name: str) -> list[onnx.NodeProto]:
    """The nodes that copy integers of 64 bits, or raise an error with this name where one is 0."""
    zero, zeros, is_zero, index, none = (f"{result} {n}" for n in range(5))
    return [
        helper.make_node("Constant", [], [zero], value=helper.make_tensor(zero, _BITS, (), [0])),
        helper.make_node("Constant", [], [zeros], value=helper.make_tensor(zeros, _BITS, (1,), [0])),
        helper.make_node("Equal", [read, zero], [is_zero]),
        helper.make_node("Cast", [is_zero], [index], to=_BITS),
        helper.make_node("Gather", [zeros, index], [none], name=name),
        helper.make_node("Add", [read, none], [result]),
    ]


def error_of_guard(error: Exception) -> Exception | None:
    """The fault of which the error of a guard tells; None for any other error."""
    found = _ERROR.search(str(error))
    if found is None:
        return None
    operator, value = found.groups()
    if operator == "Scan":
        return ValueError(f"a Scan goes over {value}, which has no elements along its axis")
    return ZeroDivisionError(f"an integer is divided by {value}, which is 0")


def _scanned(
    inputs: Sequence[ir.Value | None], attributes: Mapping[str, ir.Attr], opset: int
) -> Iterator[tuple[ir.Value | None, int]]:
    """The operands that a Scan goes over, each with its axis."""
    count = attributes["num_scan_inputs"].as_int()
    given = attributes.get("scan_input_axes")
    axes = given.as_ints() if given is not None else [int(opset <= _BATCHED)] * count
    yield from zip(inputs[len(inputs) - count :], axes, strict=False)


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
    dims = _drawn_dims(model)

    def is_doubtful(by: ir.Value) -> bool:
        is_integer = by.dtype is None or by.dtype.is_integer()
        return is_integer and not (by.is_graph_input() or by in constants or _is_extent(by, dims))

    return [node for node in dividing if is_doubtful(_divisor(node))]


def _drawn_dims(model: ir.Model) -> set[str]:
    """The dims of the inputs. The sizes that are drawn for them are above 0."""
    return {symbol_of(value, axis) for value in model.graph.inputs for axis in range(len(value.shape or ()))}


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
