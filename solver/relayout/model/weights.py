"""Large constants detached from a model and attached again.

In between, structure, functions and shapes are processed in a protobuf that is small and not shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import serde

from relayout.errors import InputError
from relayout.layout.relaid_constant import AbsentTensor, is_one_of, share
from relayout.model.dims.inference_placeholders import LARGEST_KEPT
from relayout.model.external_data import Folder, adopt_external
from relayout.model.proto_graphs import copy_fields, graphs_inside, nodes_inside
from relayout.model.shape_inference import all_graphs
from relayout.model.tensor_types import is_absent

LARGEST_VECTOR_KEPT = 1 << 20
FEW_ELEMENTS = 256
"""So many elements of weights take less memory than a node."""
_TENSOR_TYPES = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)
_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)

Weights = dict[str, ir.TensorProtocol]

Adopted = dict[int, tuple[ir.Attr, ir.Attr]]
"""By identity, attributes and those that replace them."""


def detach(
    proto: onnx.ModelProto, data: Mapping[int, memoryview], folder: Folder, *, is_ours: bool
) -> tuple[onnx.ModelProto, Weights]:
    """The model with its large constants absent, and these constants themselves. It is a copy unless `proto` `is_ours`:
    then it is `proto` itself. `data` is that of the constants of which `proto` has none, by index."""
    constants = [*proto.graph.initializer]
    light = proto
    if is_ours:
        proto.graph.ClearField("initializer")
    else:
        light = onnx.ModelProto()
        copy_fields(proto, light, left_out="graph")
        copy_fields(proto.graph, light.graph, left_out="initializer")
    weights: Weights = {}
    inside: list[onnx.TensorProto] = []
    for index, tensor in enumerate(constants):
        if index in data:
            weights[tensor.name] = share(_with_data(tensor, data[index]))
        elif tensor.data_location == onnx.TensorProto.EXTERNAL:
            outside = adopt_external(_outside(tensor), folder, f"constant '{tensor.name}'")
            if is_small(tensor.data_type, tensor.dims[:]):
                light.graph.initializer.add(
                    name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=outside.tobytes()
                )
                continue
            weights[tensor.name] = outside
        elif _is_kept(tensor):
            light.graph.initializer.append(tensor)
            continue
        else:
            inside.append(tensor)
        light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    if sum(math.prod(tensor.dims[:]) for tensor in inside) <= FEW_ELEMENTS * len(light.graph.node):
        # A tensor keeps the whole protobuf in memory that it is a part of. Here the graph is the larger part.
        inside = [*onnx.GraphProto(initializer=inside).initializer]
    weights |= {tensor.name: share(serde.TensorProtoTensor(tensor)) for tensor in inside}
    return light, weights


def load_small(proto: onnx.ModelProto, folder: Folder) -> None:
    """Give the small constants inside nodes that have their data in another file these data, as `detach` gives them to
    those of the graph: shapes may depend on them."""
    bodies = [node for function in proto.functions for node in function.node]
    nodes = [*nodes_inside(proto.graph.node), *nodes_inside(bodies)]
    given = [(f"node '{n.name}' ({n.op_type})", a.t) for n in nodes for a in n.attribute if a.HasField("t")]
    given += [(f"constant '{each.name}'", each) for graph in graphs_inside(nodes) for each in graph.initializer]
    for where, tensor in given:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        outside = adopt_external(_outside(tensor), folder, where)
        if is_small(tensor.data_type, tensor.dims[:]):
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = outside.tobytes()


def detach_from_model(model: ir.Model, folder: Folder) -> tuple[onnx.ModelProto, Weights]:
    """The same of an onnx_ir.Model, which is not changed. Raises InputError if its nodes are out of order."""
    try:
        clone = model.clone()
    except Exception as error:
        raise InputError(
            "the onnx_ir.Model is not a graph",
            where=f"graph '{model.graph.name}'",
            expected="nodes in topological order, each operand an input, a constant or another node's output",
            found=str(error.__cause__ or error)[:500],
            hint="model.graph.sort() orders the nodes",
        ) from error
    weights: Weights = {}
    for graph in all_graphs(clone):
        for name, value in graph.initializers.items():
            if value.const_value is None:
                raise InputError(
                    "a constant has no data", where=f"constant '{name}'", expected="a tensor", found="none"
                )
            # Writing a tensor sets its name to that of its value, and the caller's tensor must not be renamed.
            tensor = value.const_value = share(adopt_external(value.const_value, folder, f"constant '{name}'"))
            if graph is not clone.graph or tensor.dtype == ir.DataType.STRING:
                continue
            if not is_small(tensor.dtype.value, tensor.shape.numpy()):
                weights[name] = tensor
                value.const_value = AbsentTensor(tensor.dtype, tensor.shape.numpy(), name)
    return ir.to_proto(clone), weights


def attach(model: ir.Model, graphs: Iterable[ir.Graph], weights: Weights, folder: Folder, *, in_nodes: bool) -> None:
    """Give `model` its weights; `graphs` are all of its graphs. `in_nodes`: nodes may have tensors as attributes."""
    # A small tensor is copied from the protobuf of the graph, which would else stay in memory with it.
    kept = onnx.GraphProto()
    adopted: Adopted = {}
    for graph in graphs:
        own = weights if graph is model.graph else {}
        for name, value in graph.initializers.items():
            value.const_value = own.get(name) or _adopt(value.const_value, folder, f"constant '{name}'", kept)
        for node in graph if in_nodes else ():
            if any(each.type in _TENSOR_TYPES for each in node.attributes.data.values()):
                _attach_to(node.attributes, adopted, folder, f"node '{node.name}' ({node.op_type})", kept)
                _note_data(node)
    for function in model.functions.values():
        _attach_to(function.attributes, adopted, folder, f"function '{function.name}'", kept)


def _note_data(node: ir.Node) -> None:
    """Give the result of a Constant its data as `const_value`, as initializers have it.

    A legal model has an initializer in place of a Constant in another layout, and backends must see no difference.
    """
    if node.op_type == "Constant" and node.domain == "" and "value" in node.attributes:
        given = node.attributes["value"]
        if given.type == ir.AttributeType.TENSOR and not given.is_ref():
            node.outputs[0].const_value = given.value


def _attach_to(
    attributes: MutableMapping[str, ir.Attr], adopted: Adopted, folder: Folder, where: str, kept: onnx.GraphProto
) -> None:
    """Adopt the tensors among attributes, and those in lists of tensors. What nodes share is adopted once."""
    for name, attribute in list(attributes.items()):
        if id(attribute) in adopted:
            attributes[name] = adopted[id(attribute)][1]
            continue
        if attribute.type not in _TENSOR_TYPES or attribute.is_ref() or attribute.value is None:
            continue
        place = f"{where}, attribute '{name}'"
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = _adopt(attribute.value, folder, place, kept)
            attributes[name] = ir.AttrTensor(name, tensor, doc_string=attribute.doc_string)
            adopted[id(attribute)] = attribute, attributes[name]
        else:
            tensors = [_adopt(tensor, folder, f"{place}[{i}]", kept) for i, tensor in enumerate(attribute.value)]
            attributes[name] = ir.AttrTensors(name, tensors, doc_string=attribute.doc_string)


def _adopt(tensor: Any, folder: Folder, where: str, kept: onnx.GraphProto) -> ir.TensorProtocol:
    if is_one_of(tensor, serde.TensorProtoTensor):
        raw = tensor.raw
        if is_absent(raw):
            return tensor if is_one_of(tensor, AbsentTensor) else AbsentTensor.from_proto(raw)
        if math.prod(raw.dims[:]) <= LARGEST_KEPT:
            kept.initializer.append(raw)
            raw = kept.initializer[-1]
            tensor = serde.TensorProtoTensor(raw)
        # The tensor has a copy of the protobuf's metadata, and onnx_ir would write both.
        raw.ClearField("metadata_props")
    return adopt_external(tensor, folder, where)


def _with_data(tensor: onnx.TensorProto, data: memoryview) -> ir.TensorProtocol:
    """A constant whose elements are these bytes, which are not copied."""
    dtype = ir.DataType(tensor.data_type)
    array = np.frombuffer(data, dtype.numpy().newbyteorder("<")).reshape(tensor.dims[:])
    metadata = serde.deserialize_metadata_props(tensor.metadata_props)
    return ir.Tensor(array, dtype, name=tensor.name, doc_string=tensor.doc_string, metadata_props=metadata)


def _outside(tensor: onnx.TensorProto) -> ir.ExternalTensor:
    told = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset, length = (int(told[key]) if key in told else None for key in ("offset", "length"))
    except ValueError as error:
        raise InputError(
            "the external data has no place in its file",
            where=f"constant '{tensor.name}'",
            expected="an offset and a length in bytes",
            found=", ".join(f"{key} {told[key]!r}" for key in ("offset", "length") if key in told),
        ) from error
    return ir.ExternalTensor(
        told.get("location", ""),
        offset,
        length,
        ir.DataType(tensor.data_type),
        shape=ir.Shape(tensor.dims),
        name=tensor.name,
        doc_string=tensor.doc_string or None,
    )


def _is_kept(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor remains: inference may read its data, it takes no memory here, or it has no plain bytes."""
    return (
        tensor.data_type == onnx.TensorProto.STRING or is_absent(tensor) or is_small(tensor.data_type, tensor.dims[:])
    )


def is_small(data_type: int, dims: Sequence[int]) -> bool:
    """Whether data of this type and shape stays. The name of a constant does not matter: a legal model has others."""
    is_vector = len(dims) < 2 and data_type in _INTEGERS
    most = LARGEST_VECTOR_KEPT if is_vector else LARGEST_KEPT
    return math.prod(dims) * ir.DataType(data_type).bitwidth <= 8 * most
