"""Models between protobuf and onnx_ir, with each type and each attribute converted once for all that have it.

A network of 10,000 nodes has some twenty types and shapes, and as many attributes. onnx_ir converts each anew, which is
half of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

SMALL = 128
"""Nodes share equal tensors up to this many bytes as attributes."""

# The key of onnx_ir for the quantization parameters of a value.
_QUANTIZATION = "quant_parameter_tensor_names"

_PLAIN = frozenset(getattr(onnx.AttributeProto, name) for name in "INT INTS FLOAT FLOATS STRING STRINGS".split())


def model_of(proto: onnx.ModelProto, *, has_graphs: bool) -> ir.Model:
    """The model of a protobuf, which is used up. Its nodes are in topological order. `has_graphs`: a node may have
    graphs inside. Values of equal type share one frozen shape, as onnx_ir makes them, and nodes share attributes."""
    graph = proto.graph
    nodes = graph.node[:]
    if has_graphs or graph.quantization_annotation or any(node.device_configurations for node in nodes):
        return serde.deserialize_model(proto)
    described = {info.name: info for info in graph.value_info}
    values = {info.name: serde.deserialize_value_info_proto(info, None) for info in graph.input}
    inputs = [*values.values()]
    constants = [*_constants(graph.initializer, described, values)]
    made = [*_nodes(nodes, described, values)]
    outputs = [serde.deserialize_value_info_proto(info, values[info.name]) for info in graph.output]
    for field in ("input", "output", "initializer", "node", "value_info"):
        graph.ClearField(field)
    model = serde.deserialize_model(proto)
    rest = model.graph
    model.graph = ir.Graph(
        inputs,
        outputs,
        nodes=made,
        initializers=constants,
        doc_string=rest.doc_string,
        opset_imports=rest.opset_imports,
        name=rest.name,
        metadata_props=rest.metadata_props,
    )
    return model


def _constants(
    tensors: Iterable[onnx.TensorProto], described: Mapping[str, onnx.ValueInfoProto], values: dict[str, ir.Value]
) -> Iterator[ir.Value]:
    """The values with data; those that are no inputs are entered into `values`."""
    shapes: dict[tuple[int, ...], ir.Shape] = {}
    for proto in tensors:
        name, tensor = proto.name, serde.deserialize_tensor(proto)
        value = values.get(name)
        if value is None:
            extents = tuple(proto.dims[:])
            shape = shapes.get(extents)
            if shape is None:
                shape = shapes[extents] = ir.Shape(extents, frozen=True)
            value = values[name] = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype))
            if name in described:
                serde.deserialize_value_info_proto(described[name], value)
        value.const_value = tensor
        yield value


def _nodes(
    nodes: Iterable[onnx.NodeProto], described: Mapping[str, onnx.ValueInfoProto], values: dict[str, ir.Value]
) -> Iterator[ir.Node]:
    """The nodes one after the other; their results are entered into `values`."""
    types = _Types()
    attributes: dict[bytes, ir.Attr] = {}
    for node in nodes:
        operator, results = node.op_type, []
        for name in node.output[:]:
            info = described.get(name)
            value = ir.Value(name=name) if info is None else types.value(name, info)
            if name:
                values[name] = value
            results.append(value)
        given = []
        for attribute in node.attribute[:]:
            # The name of a Constant's tensor follows that of its value.
            kind = attribute.type
            is_tensor = kind == onnx.AttributeProto.TENSOR and operator != "Constant"
            written = attribute.SerializeToString() if is_tensor or kind in _PLAIN else b""
            if not written or (is_tensor and len(written) >= SMALL):
                given.append(serde.deserialize_attribute(attribute))
                continue
            shared = attributes.get(written)
            if shared is None:
                shared = attributes[written] = serde.deserialize_attribute(attribute)
            given.append(shared)
        yield ir.Node(
            node.domain,
            operator,
            [values[name] if name else None for name in node.input[:]],
            given,
            overload=node.overload,
            outputs=results,
            name=node.name,
            doc_string=node.doc_string if node.HasField("doc_string") else None,
            metadata_props=serde.deserialize_metadata_props(node.metadata_props) if node.metadata_props else None,
        )


class _Types:
    """The types and shapes of the values so far."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[ir.Shape | None, ir.DataType | None]] = {}

    def value(self, name: str, info: onnx.ValueInfoProto) -> ir.Value:
        """A value of this name, type and shape."""
        if info.metadata_props or info.doc_string:
            return serde.deserialize_value_info_proto(info, None)
        kind = info.type
        written = kind.SerializeToString()
        known = self._known.get(written)
        if known is None:
            made = serde.deserialize_value_info_proto(info, None)
            is_plain = isinstance(made.type, ir.TensorType) and made.type.denotation is None
            known = self._known[written] = made.shape, made.dtype if is_plain else None
        shape, dtype = known
        # A type can be changed in place, so each value has its own.
        type_ = serde.deserialize_type_proto_for_type(kind) if dtype is None else ir.TensorType(dtype)
        return ir.Value(name=name, shape=shape, type=type_)


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
    known: dict[object, bytes] = {}
    outputs = {*graph.outputs}
    for node in graph:
        _write_node(proto.node.add(), node, version, known)
        for value in node.outputs:
            if value not in outputs:
                declare.quantization(value)
                declare.type(value)
    for value in graph.outputs:
        serde.serialize_value_into(proto.output.add(), value)
        declare.quantization(value)
    _write_metadata(proto, graph.metadata_props)


def _write_node(proto: onnx.NodeProto, node: ir.Node, version: int, known: dict[object, bytes]) -> None:
    """Write a node. `known` are the operators with their attributes as they were written for the nodes so far."""
    if node.device_configurations:
        serde.serialize_node_into(proto, node, model_ir_version=version)
        return
    operator, domain, overload = node.op_type, node.domain, node.overload
    attributes = node.attributes.data.values()
    # The nodes hold their attributes, and nothing changes them meanwhile, so the identity of one is a key.
    key = operator, domain, overload, *map(id, attributes)
    if key in known:
        proto.MergeFromString(known[key])
    else:
        proto.op_type = operator
        if domain:
            proto.domain = domain
        if overload:
            proto.overload = overload
        for attribute in attributes:
            _write_attribute(proto, attribute)
        # A graph or the tensor of a Constant may be large, and no other node has the same one.
        if operator != "Constant" and not any(attribute.type in _GRAPHS for attribute in attributes):
            known[key] = proto.SerializeToString()
    if name := node.name:
        proto.name = name
    if doc_string := node.doc_string:
        proto.doc_string = doc_string
    if node.metadata_props:
        _write_metadata(proto, node.metadata_props)
    proto.input.extend([value.name if value is not None else "" for value in node.inputs])
    results = [value.name for value in node.outputs]
    while results and not results[-1]:
        results.pop()
    proto.output.extend(results)


def _write_attribute(proto: onnx.NodeProto, attribute: ir.Attr) -> None:
    number = _NUMBERS.get(attribute.type)
    if attribute.is_ref():
        serde.serialize_reference_attribute_into(proto.attribute.add(), attribute)
    elif number is None or attribute.doc_string:
        serde.serialize_attribute_into(proto.attribute.add(), attribute)
    else:
        proto.attribute.add(**{"name": attribute.name, "type": attribute.type.value, number: attribute.value})


class _Declarations:
    """The declared types of a graph's values. One that several values have, with the same metadata, is written once."""

    def __init__(self, proto: onnx.GraphProto) -> None:
        self._infos, self._annotations = proto.value_info, proto.quantization_annotation
        self._known: dict[object, bytes] = {}

    def type(self, value: ir.Value) -> None:
        """Declare the value's type, as far as it is known."""
        name, kind, shape = value.name, value.type, value.shape
        metadata, doc_string = value.metadata_props, value.doc_string
        if not name or (kind is None and shape is None and not metadata and not doc_string):
            return
        info = self._infos.add()
        if type(kind) is not ir.TensorType or kind.denotation or shape is None or doc_string:
            serde.serialize_value_into(info, value)
            return
        # Nothing changes the model meanwhile, so the identity of a shape is a key.
        key = id(shape), kind.dtype, tuple(metadata.items()) if metadata else None
        written = self._known.get(key)
        if written is None:
            # Constants have a shape each. The rest of a shape are its denotations.
            alike = shape.dims, *map(shape.get_denotation, range(len(shape))), *key[1:]
            written = self._known.get(alike)
            if written is None:
                first = onnx.ValueInfoProto()
                serde.serialize_type_into(first.type, kind)
                serde.serialize_shape_into(first.type, shape)
                if metadata:
                    _write_metadata(first, metadata)
                written = self._known[alike] = first.SerializeToString()
            self._known[key] = written
        info.MergeFromString(written)
        info.name = name

    def quantization(self, value: ir.Value) -> None:
        """Add the value's quantization parameters, if it has any."""
        if value.meta and (tensors := value.meta.get(_QUANTIZATION)):
            annotation = self._annotations.add(tensor_name=value.name)
            for name in sorted(tensors):
                annotation.quant_parameter_tensor_names.add(key=name, value=tensors[name])


def _write_metadata(proto: onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto, metadata: Mapping[str, str]) -> None:
    for key in sorted(metadata):
        proto.metadata_props.add(key=key, value=metadata[key])
