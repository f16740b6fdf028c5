"""Models between protobuf and onnx_ir, with each type and each attribute converted once for all that have it.

A network of 10,000 nodes has some twenty types and shapes, and as many attributes. onnx_ir converts each anew, which is
half of its time. So types and attributes are taken out of what it reads, and nodes and values are written here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy as shallow_copy
from typing import NamedTuple

import onnx
import onnx_ir as ir
from onnx_ir import serde

from relayout.model.proto_graphs import replace_entries

SMALL = 128
"""Nodes share equal tensors up to this many bytes as attributes."""

QUANTIZATION = "quant_parameter_tensor_names"
"""The key of onnx_ir, in `Value.meta`, for the quantization parameters of a value."""

_PLAIN = frozenset(getattr(onnx.AttributeProto, name) for name in "INT INTS FLOAT FLOATS STRING STRINGS".split())


def model_of(proto: onnx.ModelProto) -> ir.Model:
    """The model of a protobuf, which is used up. Its nodes are in topological order. Values of the graph with equal
    types share one frozen shape, and its nodes share equal attributes."""
    types = _take_types(proto.graph)
    attributes = [_take_attributes(node) for node in proto.graph.node[:]]
    model = serde.deserialize_model(proto)
    known: dict[bytes, ir.Attr] = {}
    for node, taken in zip(model.graph, attributes, strict=True):
        for written in taken:
            if written not in known:
                known[written] = serde.deserialize_attribute(onnx.AttributeProto.FromString(written))
            node.attributes[known[written].name] = known[written]
    shapes: dict[bytes, tuple[ir.Shape | None, ir.DataType]] = {}
    stored: dict[tuple[int | ir.SymbolicDim, ...], ir.Shape] = {}
    made = [value for node in model.graph for value in node.outputs]
    for value in (*model.graph.initializers.values(), *made):
        found = types.get(value.name or "")
        if found is None:
            if (shape := value.shape) is not None and shape.frozen:
                # That of a constant's data.
                value.shape = stored.setdefault(shape.dims, shape)
            continue
        if found not in shapes:
            type_ = onnx.TypeProto.FromString(found)
            shapes[found] = serde.deserialize_type_proto_for_shape(type_), ir.DataType(type_.tensor_type.elem_type)
        value.shape, dtype = shapes[found]
        # A type can be changed in place, so each value has its own.
        value.type = ir.TensorType(dtype)
    return model


def _take_types(graph: onnx.GraphProto) -> dict[str, bytes]:
    """The types of values, encoded, which the graph loses. It keeps those of inputs and outputs, and those with more
    than an element type and a shape."""
    boundary = {info.name for info in (*graph.input, *graph.output)}
    taken: dict[str, bytes] = {}
    kept = []
    for info in graph.value_info[:]:
        is_plain = info.type.HasField("tensor_type") and not info.type.denotation
        if is_plain and info.name and not info.metadata_props and not info.doc_string and info.name not in boundary:
            taken[info.name] = info.type.SerializeToString()
        else:
            kept.append(info)
    replace_entries(graph.value_info, kept)
    return taken


def _take_attributes(node: onnx.NodeProto) -> list[bytes]:
    """The attributes of a node, encoded, which it loses; none if one is large or has a graph."""
    attributes = node.attribute[:]
    for attribute in attributes:
        # The name of a Constant's tensor follows that of its value.
        is_tensor = attribute.type == onnx.AttributeProto.TENSOR and node.op_type != "Constant"
        if attribute.type not in _PLAIN and not (is_tensor and attribute.ByteSize() < SMALL):
            return []
    taken = [attribute.SerializeToString() for attribute in attributes]
    node.ClearField("attribute")
    return taken


def proto_of(model: ir.Model, is_stored: Callable[[ir.Value], bool]) -> onnx.ModelProto:
    """The protobuf of a model as onnx_ir writes it. `is_stored`: whether the data of a constant of the graph are
    written too; the others have a type and a shape only."""
    graph, proto = model.graph, onnx.ModelProto()
    rest = shallow_copy(model)
    # onnx_ir writes a view as it writes a graph. This one has no values and no nodes: they follow.
    rest.graph = ir.GraphView(  # type: ignore[assignment]
        (),
        (),
        nodes=(),
        doc_string=graph.doc_string,
        opset_imports=model.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    serde.serialize_model_into(proto, rest)
    written, known = proto.graph, _Known({}, {}, {})
    for value in graph.inputs:
        _write_value(written.input.add(), value)
    for value in graph.initializers.values():
        if not value.is_graph_input():
            _declare(value, written, known)
        if value.const_value is not None and is_stored(value):
            value.const_value.name = value.name
            serde.serialize_tensor_into(written.initializer.add(), value.const_value)
    inner = []
    for node in graph:
        _write_node(node, written, known, model.ir_version)
        inner += [value for value in node.outputs if not value.is_graph_output()]
    for value in inner:
        _declare(value, written, known)
    for value in graph.outputs:
        _write_value(written.output.add(), value)
    inputs = [value for value in graph.inputs if not value.is_initializer()]
    for value in (*inputs, *graph.initializers.values(), *inner, *graph.outputs):
        if tensors := value.meta.get(QUANTIZATION):
            annotation = written.quantization_annotation.add(tensor_name=value.name)
            for name in sorted(tensors):
                annotation.quant_parameter_tensor_names.add(key=name, value=tensors[name])
    return proto


class _Known(NamedTuple):
    """The protobufs written so far: attributes and shapes by identity, and the types of values that are declared."""

    attributes: dict[int, onnx.AttributeProto]
    shapes: dict[int, Hashable]
    values: dict[Hashable, onnx.ValueInfoProto]


def _write_node(node: ir.Node, graph: onnx.GraphProto, known: _Known, ir_version: int) -> None:
    """Add a node to a graph."""
    if node.metadata_props or node.doc_string or node.device_configurations:
        serde.serialize_node_into(graph.node.add(), node, model_ir_version=ir_version)
        return
    attributes = []
    for attribute in node.attributes.data.values():
        written = known.attributes.get(id(attribute))
        if written is None:
            write = serde.serialize_reference_attribute if attribute.is_ref() else serde.serialize_attribute
            written = known.attributes[id(attribute)] = write(attribute)
        attributes.append(written)
    results = [value.name for value in node.outputs]
    while results and not results[-1]:
        results.pop()
    graph.node.add(
        op_type=node.op_type,
        domain=node.domain or None,
        name=node.name or None,
        overload=node.overload or None,
        input=["" if value is None else value.name for value in node.inputs],
        output=results,
        attribute=attributes,
    )


def _write_value(info: onnx.ValueInfoProto, value: ir.Value) -> None:
    """Write a value. A protobuf has no place for the shape of one without a type, as a Reshape behind a custom operator
    gives it: onnx_ir leaves it out with a warning."""
    if value.type is None and value.shape is not None:
        value = ir.Value(name=value.name, doc_string=value.doc_string, metadata_props=dict(value.metadata_props))
    serde.serialize_value_into(info, value)


def _declare(value: ir.Value, graph: onnx.GraphProto, known: _Known) -> None:
    """Add the type of a value to a graph, as far as it is known."""
    type_, shape, metadata = value.type, value.shape, value.metadata_props
    if not value.name or (type_ is None and not metadata and not value.doc_string):
        return
    if type(type_) is not ir.TensorType or type_.denotation or shape is None or value.doc_string:
        _write_value(graph.value_info.add(), value)
        return
    extents = known.shapes.get(id(shape))
    if extents is None:
        denotations = map(shape.get_denotation, range(len(shape)))
        extents = known.shapes[id(shape)] = shape.dims, *denotations
    key = type_.dtype, extents, *metadata.items()
    first = known.values.get(key)
    if first is None:
        first = known.values[key] = onnx.ValueInfoProto()
        serde.serialize_value_into(first, value)
    graph.value_info.add(name=value.name, type=first.type, metadata_props=first.metadata_props)
