"""A model's nodes one by one, as they are and in float64: with every float32 in them, constants included, widened.

Functions are inlined first. A model that widening would change is refused: one with float64 of its own rounds to
float32 on purpose. The other float types stay as they are, with their rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from relayout.verification.constants import RANDOM
from relayout.verification.numeric.inputs import Array

__all__ = ["Step", "Steps", "UndecidedError", "steps_of", "wide"]

# Attributes that are an element type. Absent ones are float32 by default where no operand has a type.
_TYPES = ("to", "dtype", "output_dtype", "output_datatype")
_TYPED = ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "DynamicQuantizeLinear")

_OWN = "a model has float64 of its own, so its rounding is part of it"


class UndecidedError(Exception):
    """The reason why the models cannot be compared in float64."""


@dataclass(frozen=True)
class Step:
    """One node, as it is and in float64, and all outer values that it reads, bodies included."""

    narrow: onnx.NodeProto
    wide: onnx.NodeProto
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Steps:
    """A model's nodes in order, its constants as they are, and its opsets."""

    steps: tuple[Step, ...]
    constants: dict[str, Array]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int


def steps_of(model: ir.Model) -> Steps:
    """The steps of a model. Raises UndecidedError for a model that has no float64 of the same meaning."""
    from onnx_ir.passes.common import InlinePass

    flat = model.clone()
    InlinePass()(flat)
    constants = {str(value.name): _data(value) for value in flat.graph.initializers.values()}
    flat.graph.initializers.clear()
    proto = ir.to_proto(flat)
    steps = tuple(Step(node, _wide_node(node), tuple(_reads(node))) for node in proto.graph.node)
    held = [*constants.values(), *(numpy_helper.to_array(tensor) for step in steps for tensor in _tensors(step.narrow))]
    if any(array.dtype == np.float64 for array in held) or any(map(_says_float64, _entries(proto.graph))):
        raise UndecidedError(_OWN)
    return Steps(steps, constants, tuple(proto.opset_import), proto.ir_version)


def wide(array: Array) -> Array:
    """The same numbers; float32 as float64."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _data(value: ir.Value) -> Array:
    if value.const_value is None:
        raise UndecidedError(f"the constant {value.name} has no data")
    return value.const_value.numpy()


def _wide_node(node: onnx.NodeProto) -> onnx.NodeProto:
    if node.op_type in RANDOM or node.op_type in _TYPED:
        raise UndecidedError(f"the result of {node.op_type} is float32 for every input")
    widened = onnx.NodeProto()
    widened.CopyFrom(node)
    attributes = [_wide_attribute(attribute) for attribute in node.attribute]
    if node.op_type == "ConstantOfShape" and not attributes:
        attributes = [helper.make_attribute("value", numpy_helper.from_array(np.zeros(1)))]
    del widened.attribute[:]
    widened.attribute.extend(attributes)
    return widened


def _wide_attribute(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.INT and attribute.name in _TYPES:
        if attribute.i == TensorProto.DOUBLE:
            raise UndecidedError(_OWN)
        return (
            helper.make_attribute(attribute.name, TensorProto.DOUBLE) if attribute.i == TensorProto.FLOAT else attribute
        )
    if attribute.type == kinds.TENSOR:
        return helper.make_attribute(attribute.name, _wide_tensor(attribute.t))
    if attribute.name == "value_float":
        return helper.make_attribute("value", numpy_helper.from_array(np.array(np.float32(attribute.f), np.float64)))
    if attribute.name == "value_floats":
        data = np.array(attribute.floats, np.float32).astype(np.float64)
        return helper.make_attribute("value", numpy_helper.from_array(data))
    if attribute.type == kinds.GRAPH:
        return helper.make_attribute(attribute.name, _wide_graph(attribute.g))
    if attribute.type in (kinds.GRAPHS, kinds.SPARSE_TENSOR, kinds.SPARSE_TENSORS, kinds.TYPE_PROTO, kinds.TYPE_PROTOS):
        raise UndecidedError(f"the attribute {attribute.name} is not written in float64")
    return attribute


def _wide_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    if tensor.data_location == TensorProto.EXTERNAL:
        raise UndecidedError(f"the data of {tensor.name} is in a file")
    return numpy_helper.from_array(wide(numpy_helper.to_array(tensor)), tensor.name)


def _wide_graph(graph: onnx.GraphProto) -> onnx.GraphProto:
    widened = onnx.GraphProto()
    widened.CopyFrom(graph)
    for entry in _entries(widened):
        if entry.type.tensor_type.elem_type == TensorProto.FLOAT:
            entry.type.tensor_type.elem_type = TensorProto.DOUBLE
    del widened.node[:], widened.initializer[:]
    widened.node.extend(map(_wide_node, graph.node))
    widened.initializer.extend(map(_wide_tensor, graph.initializer))
    return widened


def _entries(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)


def _says_float64(entry: onnx.ValueInfoProto) -> bool:
    return bool(entry.type.tensor_type.elem_type == TensorProto.DOUBLE)


def _tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        for inner in _graphs(attribute):
            yield from inner.initializer
            for each in inner.node:
                yield from _tensors(each)


def _graphs(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    return (attribute.g,) if attribute.type == onnx.AttributeProto.GRAPH else tuple(attribute.graphs)


def _reads(node: onnx.NodeProto) -> dict[str, None]:
    """The names that a node reads, in order, without those that its bodies make."""
    names = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            own = {entry.name for entry in (*graph.input, *graph.initializer)}
            own.update(name for each in graph.node for name in each.output)
            inner = [name for each in graph.node for name in _reads(each)]
            inner += [entry.name for entry in graph.output]
            names.update(dict.fromkeys(name for name in inner if name not in own))
    return names
