"""Decompositions of operators, for orders of axes that the operators do not support themselves.

They work in any order: they consist of element-wise operators, which broadcast, and of reductions over axes by number.
Their traffic beyond the operator's own is `Decomposition.extra`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.layout.relaid_constant import AbsentTensor
from relayout.ops.node_reader import NodeSnapshot, constant_tensor, is_read
from relayout.ops.rule import Axes, DecompositionWriter

Places = Sequence[tuple[int, ...]]


def normalise(
    writing: DecompositionWriter, working: Collection[int], *, channel: int | None = None, plainly: bool = False
) -> None:
    """LayerNormalization over the axes `working`: (x - mean) / sqrt(variance + epsilon) * scale + bias. With `channel`
    InstanceNormalization, of which scale and bias are vectors over the channels.

    `plainly`: without ReduceSumSquare, which a backend may restrict more than a mean.
    """
    whole = own = _whole(writing)
    if channel is not None:
        own = [(place,) if axis == channel else () for place, axis in enumerate(writing.axes)]
    data = _read(writing, 0, whole)
    mean, centred, deviation = _centred(writing, data, working, whole, plainly=plainly)
    made = writing.emit_dims("Div", [centred, deviation], {}, whole)
    made = writing.emit_dims("Mul", [made, _read(writing, 1, own)], {}, whole)
    if len(writing.node.inputs) > 2 and writing.node.inputs[2] is not None:
        made = writing.emit_dims("Add", [made, _read(writing, 2, own)], {}, whole)
    _set_result(writing, 0, made, whole)
    left = _reduced(writing, working)
    if _is_used(writing.node, 1):
        _set_result(writing, 1, mean, left)
    if _is_used(writing.node, 2):
        _set_result(writing, 2, writing.emit_dims("Reciprocal", [deviation], {}, left), left)


def exponentiate(writing: DecompositionWriter, working: Collection[int]) -> None:
    """Softmax or LogSoftmax over the axes `working`: the data less its maximum, exponentiated, divided by the sum."""
    whole, left = _whole(writing), _reduced(writing, working)
    data = _read(writing, 0, whole)
    highest = _reduce(writing, "ReduceMax", data, working, left)
    below = writing.emit_dims("Sub", [data, highest], {}, whole)
    powers = writing.emit_dims("Exp", [below], {}, whole)
    total = _reduce(writing, "ReduceSum", powers, working, left)
    if writing.node.op_type == "Softmax":
        made = writing.emit_dims("Div", [powers, total], {}, whole)
    else:
        made = writing.emit_dims("Sub", [below, writing.emit_dims("Log", [total], {}, left)], {}, whole)
    _set_result(writing, 0, made, whole)


def reduce_spatial(writing: DecompositionWriter, operator: str, spatial: Collection[int]) -> None:
    """A global pool is a reduction over the spatial axes that keeps them with extent 1."""
    whole = _whole(writing)
    left = _reduced(writing, spatial)
    made = _reduce(writing, operator, writing.read(0, whole), spatial, left)
    writing.set_result(0, made, whole)


def is_channelwise(node: ir.Node | NodeSnapshot) -> bool:
    """Whether BatchNormalization's parameters are known, so that scale and shift can be computed before the run."""
    training = node.attributes.get("training_mode")
    if len(node.inputs) != 5 or (training is not None and training.as_int()):
        return False
    return all(_is_fixed_constant(value) for value in node.inputs[1:])


def _is_fixed_constant(value: ir.Value | None) -> bool:
    """Whether the value is a constant that no caller can override."""
    tensor = constant_tensor(value) if value is not None and not value.is_graph_input() else None
    return tensor is not None and not isinstance(tensor, AbsentTensor)


def channelwise(writing: DecompositionWriter, channel: int) -> None:
    """BatchNormalization with known parameters: x * scale + shift."""
    whole = _whole(writing)
    node = writing.node
    scale, bias, mean, variance = (_numbers(value) for value in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    made = writing.read(0, whole)
    for operator, array in (("Mul", factor), ("Add", bias - mean * factor)):
        constant = writing.constant(operator.lower(), writing.broadcast(channel, array.astype(mean.dtype)))
        made = writing.emit_dims(operator, [made, constant], {}, whole)
    writing.set_result(0, made, whole)


def _numbers(value: ir.Value | None) -> np.ndarray[Any, Any]:
    tensor = constant_tensor(value) if value is not None else None
    assert tensor is not None
    return tensor.numpy()


def _computed(writing: DecompositionWriter) -> ir.DataType:
    """The type in which the node is computed: 16-bit floats in 32 bits, as ONNX's normalizations are."""
    own = writing.node.outputs[0].dtype
    return ir.DataType.DOUBLE if own == ir.DataType.DOUBLE else ir.DataType.FLOAT


def _read(writing: DecompositionWriter, index: int, dims: Places) -> ir.Value:
    """An input in the type in which the node is computed."""
    return _cast(writing, writing.read(index, dims), _computed(writing), dims)


def _set_result(writing: DecompositionWriter, index: int, value: ir.Value, dims: Places) -> None:
    """A result, cast to its own type."""
    writing.set_result(index, _cast(writing, value, writing.node.outputs[index].dtype, dims), dims)


def _cast(writing: DecompositionWriter, value: ir.Value, dtype: ir.DataType | None, dims: Places) -> ir.Value:
    if dtype is None or value.dtype is None or value.dtype == dtype:
        return value
    like = ir.Value(name="", type=ir.TensorType(dtype))
    made = writing.emit_dims("Cast", [value], {"to": int(dtype)}, dims, like=like)
    made.shape = value.shape  # an input may lack some of these dimensions
    return made


def _is_used(node: ir.Node, index: int) -> bool:
    value = node.outputs[index] if index < len(node.outputs) else None
    return value is not None and is_read(value)


def _whole(writing: DecompositionWriter) -> Places:
    return [(place,) for place in range(len(writing.axes))]


def _reduced(writing: DecompositionWriter, working: Collection[int]) -> Places:
    return [() if axis in working else (place,) for place, axis in enumerate(writing.axes)]


def _centred(
    writing: DecompositionWriter, data: ir.Value, working: Collection[int], whole: Places, *, plainly: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The mean of the data, the data less its mean, and its standard deviation."""
    kind = _computed(writing).numpy()
    left = _reduced(writing, working)
    mean = _reduce(writing, "ReduceMean", data, working, left)
    centred = writing.emit_dims("Sub", [data, mean], {}, whole)
    if plainly:
        squares = writing.emit_dims("Mul", [centred, centred], {}, whole)
        variance = _reduce(writing, "ReduceMean", squares, working, left)
    else:
        summed = _reduce(writing, "ReduceSumSquare", centred, working, left)
        count = writing.constant("count", np.array(writing.count(working), kind))
        variance = writing.emit_dims("Div", [summed, count], {}, left)
    epsilon = writing.node.attributes.get_float("epsilon", 1e-5)
    shifted = writing.emit_dims("Add", [variance, writing.constant("epsilon", np.array(epsilon, kind))], {}, left)
    return mean, centred, writing.emit_dims("Sqrt", [shifted], {}, left)


def _reduce(
    writing: DecompositionWriter, operator: str, data: ir.Value, working: Collection[int], left: Places
) -> ir.Value:
    places: Axes = tuple(place for place, axis in enumerate(writing.axes) if axis in working)
    attributes: Mapping[str, Any] = {"keepdims": 1}
    if writing.opset < 18:
        return writing.emit_dims(operator, [data], {**attributes, "axes": list(places)}, left)
    given = writing.constant("axes", np.array(places, np.int64))
    return writing.emit_dims(operator, [data, given], attributes, left)
