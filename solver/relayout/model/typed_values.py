"""Models between protobuf and onnx_ir, with the type of a value converted once for all values that have it.

A network of 10,000 values has some twenty types and shapes. onnx_ir converts each anew, which is a third of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy as shallow_copy

import onnx
import onnx_ir as ir
from onnx_ir import serde

__all__ = ["model_of", "proto_of"]

# The fields of attributes that are numbers or lists of numbers.
_NUMBERS = {
    ir.AttributeType.INT: "i",
    ir.AttributeType.FLOAT: "f",
    ir.AttributeType.INTS: "ints",
    ir.AttributeType.FLOATS: "floats",
}

# The key of onnx_ir for the quantization parameters of a value.
_QUANTIZATION = "quant_parameter_tensor_names"


def model_of(proto: onnx.ModelProto) -> ir.Model:
    """The model of a protobuf, which is used up. Values of equal type share one frozen shape, as onnx_ir makes them."""
    graph = proto.graph
    elsewhere = {each.name for field in (graph.input, graph.output, graph.initializer) for each in field}
    types: dict[str, bytes] = {}
    others: list[onnx.ValueInfoProto] = []
    for info in graph.value_info:
        if info.name in elsewhere or info.metadata_props or info.doc_string:
            others.append(info)
        else:
            types[info.name] = info.type.SerializeToString()
    kept = onnx.GraphProto(value_info=others).value_info
    graph.ClearField("value_info")
    graph.value_info.extend(kept)
    model = serde.deserialize_model(proto)
    known: dict[bytes, tuple[onnx.TypeProto, ir.Shape | None, ir.TypeProtocol | None]] = {}
    for node in model.graph:
        for value in node.outputs:
            written = types.get(value.name or "")
            if written is None:
                continue
            if written not in known:
                kind = onnx.TypeProto.FromString(written)
                type_ = serde.deserialize_type_proto_for_type(kind)
                known[written] = kind, serde.deserialize_type_proto_for_shape(kind), type_
            kind, value.shape, type_ = known[written]
            # A type can be changed in place, so each value has its own.
            if isinstance(type_, ir.TensorType) and type_.denotation is None:
                value.type = ir.TensorType(type_.dtype)
            else:
                value.type = serde.deserialize_type_proto_for_type(kind)
    return model


def proto_of(model: ir.Model, is_stored: Callable[[ir.Value], bool]) -> onnx.ModelProto:
    """The protobuf of a model as onnx_ir writes it. `is_stored`: whether the data of a constant of the graph are
    written too; the others have a type and a shape only."""
    proto = onnx.ModelProto()
    _write_graph(proto.graph, model, is_stored)
    rest = shallow_copy(model)
    # onnx_ir writes a view as it writes a graph; this one adds nothing to what is written above.
    rest.graph = ir.GraphView((), (), nodes=(), opset_imports=model.opset_imports)  # type: ignore[assignment]
    serde.serialize_model_into(proto, rest)
    return proto


def _write_graph(proto: onnx.GraphProto, model: ir.Model, is_stored: Callable[[ir.Value], bool]) -> None:
    graph, version = model.graph, model.ir_version
    initializers = graph.initializers
    if graph.name:
        proto.name = graph.name
    if graph.doc_string:
        proto.doc_string = graph.doc_string
    declare = _Declarations(proto)
    for value in graph.inputs:
        serde.serialize_value_into(proto.input.add(), value)
        if value.name not in initializers:
            declare.quantization(value)
    inputs = {value.name for value in graph.inputs}
    for value in initializers.values():
        declare.quantization(value)
        if value.name not in inputs:
            declare.type(value)
        tensor = value.const_value
        if tensor is not None and is_stored(value):
            tensor.name = value.name
            serde.serialize_tensor_into(proto.initializer.add(), tensor)
    for node in graph:
        _write_node(proto.node.add(), node, version)
        for value in node.outputs:
            if not value.is_graph_output():
                declare.quantization(value)
                declare.type(value)
    for value in graph.outputs:
        serde.serialize_value_into(proto.output.add(), value)
        declare.quantization(value)
    _write_metadata(proto, graph.metadata_props)


def _write_node(proto: onnx.NodeProto, node: ir.Node, version: int) -> None:
    if node.device_configurations:
        serde.serialize_node_into(proto, node, model_ir_version=version)
        return
    proto.op_type = node.op_type
    for field in ("domain", "name", "overload", "doc_string"):
        if text := getattr(node, field):
            setattr(proto, field, text)
    if node.metadata_props:
        _write_metadata(proto, node.metadata_props)
    proto.input.extend([value.name if value is not None else "" for value in node.inputs])
    results = [value.name for value in node.outputs]
    while results and not results[-1]:
        results.pop()
    proto.output.extend(results)
    for attribute in node.attributes.data.values():
        number = _NUMBERS.get(attribute.type)
        if attribute.is_ref():
            serde.serialize_reference_attribute_into(proto.attribute.add(), attribute)
        elif number is None or attribute.doc_string:
            serde.serialize_attribute_into(proto.attribute.add(), attribute)
        else:
            proto.attribute.add(**{"name": attribute.name, "type": attribute.type.value, number: attribute.value})


class _Declarations:
    """The declared types of a graph's values. Values that share a shape share the protobuf of their type."""

    def __init__(self, proto: onnx.GraphProto) -> None:
        self._infos, self._annotations = proto.value_info, proto.quantization_annotation
        self._known: dict[tuple[int, ir.DataType], onnx.TypeProto] = {}

    def type(self, value: ir.Value) -> None:
        """Declare the value's type, as far as it is known."""
        kind, shape, metadata = value.type, value.shape, value.metadata_props
        if not value.name or (kind is None and shape is None and not metadata and not value.doc_string):
            return
        info = self._infos.add()
        if type(kind) is not ir.TensorType or kind.denotation or shape is None:
            serde.serialize_value_into(info, value)
            return
        info.name = value.name
        # Nothing changes the model meanwhile, so the identity of a shape is a key.
        key = id(shape), kind.dtype
        written = self._known.get(key)
        if written is None:
            serde.serialize_type_into(info.type, kind)
            serde.serialize_shape_into(info.type, shape)
            self._known[key] = info.type
        else:
            info.type.CopyFrom(written)
        if metadata:
            _write_metadata(info, metadata)
        if value.doc_string:
            info.doc_string = value.doc_string

    def quantization(self, value: ir.Value) -> None:
        """Add the value's quantization parameters, if it has any."""
        if value.meta and (tensors := value.meta.get(_QUANTIZATION)):
            annotation = self._annotations.add(tensor_name=value.name)
            for name in sorted(tensors):
                annotation.quant_parameter_tensor_names.add(key=name, value=tensors[name])


def _write_metadata(proto: onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto, metadata: Mapping[str, str]) -> None:
    for key in sorted(metadata):
        proto.metadata_props.add(key=key, value=metadata[key])
