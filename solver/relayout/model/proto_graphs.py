"""The graphs, nodes and names inside a protobuf, and copies of messages.

Loops over many nodes read a repeated field as a list, by the slice `[:]`. An iterator over the field itself ends with
an exception in protobuf's library, and takes three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx

_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto, onnx.NodeProto, onnx.TensorProto, onnx.TypeProto)

_NUMBERS = {
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
}

STANDARD_DOMAINS = ("", "ai.onnx")
"""The two spellings of ONNX's own domain in a protobuf. A node of onnx_ir has the first."""


def graphs_in(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    """The graphs in an attribute."""
    kind = attribute.type
    if kind == onnx.AttributeProto.GRAPH and attribute.HasField("g"):
        return (attribute.g,)
    graphs: Sequence[onnx.GraphProto] = attribute.graphs if kind == onnx.AttributeProto.GRAPHS else ()
    return graphs


def graphs_inside(nodes: Iterable[onnx.NodeProto]) -> list[onnx.GraphProto]:
    """The graphs in the attributes of these nodes, without those inside the graphs."""
    return [graph for node in nodes for attribute in node.attribute[:] for graph in graphs_in(attribute)]


def branch_taken(node: onnx.NodeProto, known: Mapping[str, np.ndarray]) -> onnx.GraphProto | None:
    """The branch of an If that runs; None where the condition is not among the values that are `known`."""
    condition = known.get(node.input[0]) if node.op_type == "If" and node.domain in STANDARD_DOMAINS else None
    if condition is None or condition.size != 1:
        return None
    taken = "then_branch" if condition.item() else "else_branch"
    return next((attribute.g for attribute in node.attribute if attribute.name == taken), None)


def tensor_of(constant: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor of a Constant, which may be written as plain numbers; None for texts and sparse tensors."""
    for given in constant.attribute[:1]:
        if given.name == "value":
            tensor: onnx.TensorProto = given.t
            return tensor
        if (dtype := _NUMBERS.get(given.name)) is not None and not given.ref_attr_name:
            return onnx.numpy_helper.from_array(np.array(onnx.helper.get_attribute_value(given), dtype))
    return None


def subgraphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and the graphs in its nodes' attributes, at every depth."""
    yield graph
    for inner in graphs_inside(graph.node):
        yield from subgraphs_of(inner)


def declared_values(graph: onnx.GraphProto) -> tuple[onnx.ValueInfoProto, ...]:
    """The values of a graph that may have a declared type: its inputs, the values inside, and its outputs."""
    return (*graph.input, *graph.value_info, *graph.output)


def dims_in(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """The dims of all declared values, in the graph and those inside it."""
    for each in subgraphs_of(graph):
        for value in declared_values(each):
            yield from value.type.tensor_type.shape.dim


def dims_by_name(graph: onnx.GraphProto) -> dict[str, Sequence[onnx.TensorShapeProto.Dimension]]:
    """The dims of the values of a graph that have a declared rank, by name."""
    types = ((value.name, value.type.tensor_type) for value in declared_values(graph))
    return {name: kind.shape.dim for name, kind in types if kind.HasField("shape")}


def extents_in(kind: onnx.TypeProto) -> tuple[int | None, ...] | None:
    """The extents of a tensor's type, None for each that has no number; None where the rank is not known."""
    if not (kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")):
        return None
    return tuple([dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim])


def extents_by_name(graph: onnx.GraphProto) -> dict[str, tuple[int | None, ...]]:
    """The extents of the values of a graph that have a declared rank, by name."""
    found = ((value.name, extents_in(value.type)) for value in declared_values(graph))
    return {name: extents for name, extents in found if extents is not None}


def static_shape(kind: onnx.TypeProto) -> tuple[int, ...] | None:
    """The extents of a tensor's type; None where one is not known, or the rank."""
    if not (kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")):
        return None
    dims = kind.tensor_type.shape.dim
    known = tuple([dim.dim_value for dim in dims if dim.HasField("dim_value")])
    return known if len(known) == len(dims) else None


def opset_of(imports: Iterable[onnx.OperatorSetIdProto], default: int = 1) -> int:
    """The version of ONNX's own operators among these imports."""
    return next((each.version for each in imports if each.domain in STANDARD_DOMAINS), default)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The values of a node's attributes by name."""
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def value_names(graph: onnx.GraphProto) -> set[str]:
    """The names of a graph's own values: its inputs, constants, and results of its nodes."""
    names = {each.name for each in (*graph.input, *graph.initializer)}
    return names.union(*(node.output for node in graph.node))


def unused_name(stem: str, taken: set[str], first: int = 1) -> str:
    """The stem, or with a number from `first` on, whichever is not `taken` first; it is taken from now on."""
    name, number = stem, first
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    taken.add(name)
    return name


def nodes_inside(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes and those in graphs inside them, at every depth."""
    for node in nodes:
        yield node
        for graph in graphs_inside([node]):
            yield from nodes_inside(graph.node)


def copied(message: _Message) -> _Message:
    """A copy of a message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def replace_entries(field: Any, entries: Iterable[Any]) -> None:
    """Replace the entries of a repeated field, some of which may be among the new ones."""
    kept = list(entries)
    del field[:]
    field.extend(kept)


def copy_fields(source: Any, target: Any, *, left_out: str) -> None:
    """Copy the fields of a message into another of its type, all but one."""
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
