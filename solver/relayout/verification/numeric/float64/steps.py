"""A model's nodes one by one, in float32 and in float64: with narrower floats in them, constants included, widened.

Functions are inlined first. A model that widening would change is refused: one with float64 of its own rounds to
float32 on purpose. float16 and bfloat16 are widened as float32 is; floats of 8 bits and less stay as they are, with
their rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from relayout.model.dims.negative_extents import inferred_by_onnx
from relayout.model.proto_graphs import (
    STANDARD_DOMAINS,
    copied,
    declared_values,
    graphs_in,
    graphs_inside,
    nodes_inside,
    replace_entries,
    subgraphs_of,
    value_names,
)
from relayout.model.runtime import plain_session
from relayout.ops import all_nodes
from relayout.verification.constants import RANDOM
from relayout.verification.numeric.baseline import first_line
from relayout.verification.numeric.bodies import BodyOf
from relayout.verification.numeric.deadline import UndecidedError
from relayout.verification.numeric.float64.casts import FLOATS, TYPES, Casts, casts_of
from relayout.verification.numeric.inputs import Array

# Attributes that are an element type are float32 by default where no operand has a type.
_TYPED = ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "DynamicQuantizeLinear")

_OVERFLOWS_FLOAT16 = 65520.0
"""The least number that float16 rounds to infinity."""

_OWN = "a model has float64 of its own, so its rounding is part of it"


@dataclass(frozen=True)
class Step:
    """One node, in float32 and in float64, and all outer values that it reads, bodies included.

    `branches`: the bodies of an If by its condition. `body`: that of an operator of a backend's own, where it is known.
    `is_fixed`: it computes from constants and shapes alone, which the legal model may have as constants in float32.
    """

    narrow: onnx.NodeProto
    wide: onnx.NodeProto
    reads: tuple[str, ...]
    branches: Mapping[bool, Branch] = field(default_factory=dict)
    body: Body | None = None
    is_fixed: bool = False


@dataclass(frozen=True)
class Branch:
    """The nodes of a body in order, its constants as they are, and the names of its results."""

    steps: tuple[Step, ...]
    constants: dict[str, Array]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Body:
    """The nodes of a function in order, and the names of its operands and results."""

    steps: tuple[Step, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Steps:
    """A model's nodes in order, its constants as they are, and its opsets.

    `casts` are those between the types that are widened, and `largest` is the largest number of the narrowest one.
    `sessions` of onnxruntime are those of nodes that ran, by the bytes of a model of one node: many nodes are the same.
    `overflowing` has, for each value in float16, the least number that float16 rounds to infinity.
    """

    steps: tuple[Step, ...]
    constants: dict[str, Array]
    casts: Casts
    largest: float
    overflowing: Mapping[str, float]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    sessions: dict[bytes, Any] = field(default_factory=dict)


def steps_of(model: ir.Model, wanted: Iterable[str], body_of: BodyOf) -> Steps:
    """The steps to the `wanted` values of a model. Raises UndecidedError for a model that has no float64 of the same
    meaning."""
    from onnx_ir.passes.common import InlinePass

    flat = model.clone()
    try:
        InlinePass()(flat)
    except ValueError as error:  # a version converter may leave the bodies of functions as they were
        raise UndecidedError(f"the functions cannot be inlined: {first_line(error)}") from error
    constants = {str(value.name): _data(value) for value in flat.graph.initializers.values()}
    flat.graph.initializers.clear()
    opset = flat.opset_imports.get("", 1)
    asked = ((node, body_of(node, opset)) for node in all_nodes(flat.graph))
    named = {_named(value.name for value in node.outputs): body for node, body in asked}
    bodies = {name: body.function for name, body in named.items() if body is not None}
    proto = _with_types(ir.to_proto(flat))
    _keep_nodes_of(proto.graph, wanted)
    constants |= _take_constants(proto, constants, wanted)
    fixed = _fixed(proto.graph.node, constants)
    steps = tuple(
        replace(step, is_fixed=not fixed.isdisjoint(step.wide.output)) for step in _steps(proto.graph.node, bodies)
    )
    nodes = list(nodes_inside(proto.graph.node))
    types: set[int] = {helper.np_dtype_to_tensor_dtype(array.dtype) for array in constants.values()}
    types.update(tensor.data_type for node in nodes for tensor in _tensors(node))
    types.update(entry.type.tensor_type.elem_type for entry in declared_values(proto.graph))
    of_values = _types_of(proto.graph, constants)
    casts = casts_of(nodes, of_values, constants)
    if TensorProto.DOUBLE in types:
        raise UndecidedError(_OWN)
    has_float16 = TensorProto.FLOAT16 in types or TensorProto.FLOAT16 in casts.closed | casts.others
    largest = float(np.finfo(np.float16 if has_float16 else np.float32).max)
    if not types.isdisjoint((TensorProto.FLOAT16, TensorProto.BFLOAT16)):
        # These are rounded more than float32 is.
        steps = tuple(replace(step, is_fixed=False) for step in steps)
    overflowing = {name: _OVERFLOWS_FLOAT16 for name, dtype in of_values.items() if dtype == TensorProto.FLOAT16}
    return Steps(steps, constants, casts, largest, overflowing, tuple(proto.opset_import), proto.ir_version)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of all values for which they follow: those inside functions are not declared."""
    declared = {entry.name for entry in declared_values(model.graph)}
    if all(name in declared for node in model.graph.node for name in node.output if name):
        return model
    return inferred_by_onnx(model)


def _types_of(graph: onnx.GraphProto, constants: Mapping[str, Array]) -> dict[str, int]:
    """The element types that are declared, in the graph and those inside it, and those of its constants."""
    stored = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in constants.items()}
    declared = (entry for inner in subgraphs_of(graph) for entry in declared_values(inner))
    return stored | {entry.name: entry.type.tensor_type.elem_type for entry in declared}


def wide(array: Array) -> Array:
    """The same numbers; narrower floats as float64."""
    return _of_type(array, TensorProto.DOUBLE)


def narrow(array: Array) -> Array:
    """The numbers in float32, if they are floats of 16 bits or more."""
    return array.astype(np.float32) if array.dtype == np.float64 else _of_type(array, TensorProto.FLOAT)


_Bodies = Mapping[str, onnx.FunctionProto]
"""The bodies of nodes by the name of the first result that has one."""


def _named(results: Iterable[str | None]) -> str:
    return next(filter(None, results), "")


def _steps(nodes: Iterable[onnx.NodeProto], bodies: _Bodies) -> tuple[Step, ...]:
    return tuple(_step(node, bodies) for node in nodes)


def _step(node: onnx.NodeProto, bodies: _Bodies) -> Step:
    branches = {}
    if node.domain in STANDARD_DOMAINS and node.op_type == "If":
        branches = {attribute.name == "then_branch": _branch(attribute.g, bodies) for attribute in node.attribute}
    function = bodies.get(_named(node.output))
    body = None if function is None else Body(_steps(function.node, {}), (*function.input,), (*function.output,))
    narrowed, widened = _in_type(node, TensorProto.FLOAT), _in_type(node, TensorProto.DOUBLE)
    return Step(narrowed, widened, tuple(_reads(node)), branches, body)


def _branch(graph: onnx.GraphProto, bodies: _Bodies) -> Branch:
    constants = {tensor.name: _array(tensor) for tensor in graph.initializer}
    return Branch(_steps(graph.node, bodies), constants, tuple(entry.name for entry in graph.output))


def _keep_nodes_of(graph: onnx.GraphProto, wanted: Iterable[str]) -> None:
    """Remove the nodes on which no `wanted` value depends, with their results' types: the legal model has no unread
    results."""
    needed, kept = set(wanted), []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(_reads(node))
            kept.append(node)
    replace_entries(graph.node, reversed(kept))
    replace_entries(graph.value_info, [info for info in graph.value_info if info.name in needed])


def _take_constants(proto: onnx.ModelProto, constants: Mapping[str, Array], wanted: Iterable[str]) -> dict[str, Array]:
    """Remove the nodes that compute from constants alone; the values of theirs that are read, as onnxruntime computes
    them in the model's own types. The legal model may have them as constants, which are rounded so."""
    fixed = {*constants}
    computed: list[onnx.NodeProto] = []
    others: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        is_fixed = node.op_type not in RANDOM and node.domain in STANDARD_DOMAINS and fixed.issuperset(_reads(node))
        (computed if is_fixed else others).append(node)
        fixed.update(node.output if is_fixed else ())
    made = {name for node in computed for name in node.output if name}
    read = sorted(made.intersection([*wanted, *(name for node in others for name in _reads(node))]))
    if not read:
        return {}
    kept = {name for node in computed for name in _reads(node)} - made
    stored = [numpy_helper.from_array(constants[name], name) for name in sorted(kept)]
    results: list[Any] = [onnx.ValueInfoProto(name=name) for name in read]
    graph = helper.make_graph(computed, "constants", [], results, stored)
    alone = helper.make_model(graph, opset_imports=list(proto.opset_import), ir_version=proto.ir_version)
    try:
        found = dict(zip(read, plain_session(alone).run(read, {}), strict=True))
    except Exception:  # it may raise anything: they are computed in float64 like all others
        return {}
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        return {}
    replace_entries(proto.graph.node, others)
    return found


def _fixed(nodes: Iterable[onnx.NodeProto], constants: Iterable[str]) -> set[str]:
    """The values that are computed from constants and shapes alone, without these."""
    shapes, found = {*constants}, set[str]()
    for node in nodes:
        if node.domain not in STANDARD_DOMAINS or node.op_type in RANDOM or any(graphs_inside([node])):
            continue
        if node.op_type in ("Shape", "Size"):
            shapes.update(node.output)
        elif (shapes | found).issuperset(_reads(node)):
            found.update(node.output)
    return found


def _of_type(array: Array, dtype: int) -> Array:
    if helper.np_dtype_to_tensor_dtype(array.dtype) not in FLOATS:
        return array
    return array.astype(helper.tensor_dtype_to_np_dtype(dtype))


def _data(value: ir.Value) -> Array:
    if value.const_value is None:
        raise UndecidedError(f"the constant {value.name} has no data")
    return value.const_value.numpy()


def _in_type(node: onnx.NodeProto, dtype: int) -> onnx.NodeProto:
    if node.op_type in RANDOM or node.op_type in _TYPED:
        raise UndecidedError(f"the result of {node.op_type} is float32 for every input")
    widened = copied(node)
    attributes = [_attribute(attribute, dtype) for attribute in node.attribute]
    if node.op_type == "ConstantOfShape" and not attributes:
        attributes = [_constant(0.0, dtype, (1,))]
    del widened.attribute[:]
    widened.attribute.extend(attributes)
    return widened


def _attribute(attribute: onnx.AttributeProto, dtype: int) -> onnx.AttributeProto:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.INT and attribute.name in TYPES:
        if attribute.i == TensorProto.DOUBLE:
            raise UndecidedError(_OWN)
        return helper.make_attribute(attribute.name, dtype) if attribute.i in FLOATS else attribute
    if attribute.type == kinds.TENSOR:
        return helper.make_attribute(attribute.name, _tensor(attribute.t, dtype))
    if attribute.name == "value_float":
        return _constant(attribute.f, dtype, ())
    if attribute.name == "value_floats":
        return _constant(attribute.floats, dtype, (len(attribute.floats),))
    if attribute.type == kinds.GRAPH:
        return helper.make_attribute(attribute.name, _graph(attribute.g, dtype))
    if attribute.type in (kinds.GRAPHS, kinds.SPARSE_TENSOR, kinds.SPARSE_TENSORS, kinds.TYPE_PROTO, kinds.TYPE_PROTOS):
        raise UndecidedError(f"the attribute {attribute.name} is not written in float64")
    return attribute


def _constant(data: float | Sequence[float], dtype: int, shape: tuple[int, ...]) -> onnx.AttributeProto:
    array = np.array(data, np.float32).reshape(shape)
    return helper.make_attribute("value", numpy_helper.from_array(_of_type(array, dtype)))


def _tensor(tensor: onnx.TensorProto, dtype: int) -> onnx.TensorProto:
    if tensor.data_type not in FLOATS:
        return tensor
    return numpy_helper.from_array(_of_type(_array(tensor), dtype), tensor.name)


def _array(tensor: onnx.TensorProto) -> Array:
    if tensor.data_location == TensorProto.EXTERNAL:
        raise UndecidedError(f"the data of {tensor.name} is in a file")
    return numpy_helper.to_array(tensor)


def _graph(graph: onnx.GraphProto, dtype: int) -> onnx.GraphProto:
    widened = copied(graph)
    for entry in declared_values(widened):
        if entry.type.tensor_type.elem_type in FLOATS:
            entry.type.tensor_type.elem_type = dtype
    del widened.node[:], widened.initializer[:]
    widened.node.extend(_in_type(node, dtype) for node in graph.node)
    widened.initializer.extend(_tensor(tensor, dtype) for tensor in graph.initializer)
    return widened


def _tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """The tensors in a node, without those of the nodes in its bodies."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        for inner in graphs_in(attribute):
            yield from inner.initializer


def _reads(node: onnx.NodeProto) -> dict[str, None]:
    """The names that a node reads, in order, without those that its bodies make."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in graphs_inside([node]):
        own = value_names(graph)
        inner = [name for each in graph.node for name in _reads(each)]
        inner += [entry.name for entry in graph.output]
        names.update(dict.fromkeys(name for name in inner if name not in own))
    return names
