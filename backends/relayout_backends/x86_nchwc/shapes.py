"""The facts about a node's operands that the backend needs: constants, element types, extents and attributes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.layout.relaid_constant import AbsentTensor
from relayout.model.constants import hangs_on_constants
from relayout.model.dims.formula import formula_size
from relayout.model.tensor_sizes import USUAL, first_axis
from relayout.ops.node_reader import constant_tensor
from relayout_backends.x86_nchwc.neighbours import maker

# onnxruntime fuses it with its neighbours into quantized operators.
_NEVER_KNOWN = frozenset({"DequantizeLinear"})

# The most elements of a filled tensor that may be stored: vectors of parameters, no kernels.
_SMALL = 1 << 16

# The extent assumed for a name of a dim that is not known before run time, but for a batch, which counts 1.
UNKNOWN = 64


def is_float(value: ir.Value | None) -> bool:
    """Whether `value` is float32, the only type that is ever blocked."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def is_dequantized(value: ir.Value | None) -> bool:
    """Whether a DequantizeLinear produces `value`: onnxruntime fuses its readers into quantized operators."""
    producer = maker(value)
    return producer is not None and producer.op_type == "DequantizeLinear"


def is_float_image(value: ir.Value | None) -> bool:
    """Whether `value` is float32 with four dims and a known number of channels: only those are ever blocked."""
    return (
        value is not None
        and value.dtype == ir.DataType.FLOAT
        and value.shape is not None
        and len(value.shape) == 4
        and isinstance(value.shape[1], int)
        and value.shape[1] > 0
    )


def channels_of(value: ir.Value | None) -> int:
    """The extent of axis 1, which must be known."""
    assert value is not None
    assert value.shape is not None
    channels = value.shape[1]
    assert isinstance(channels, int)
    return channels


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The constant of `value`, its data present or absent; None where it is computed, an input or missing."""
    if value is None or value.is_graph_input():
        return None
    return constant_tensor(value)


def numbers(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The data of a constant, or of a small tensor filled with one number; None for other values."""
    tensor = constant(value)
    if tensor is not None:
        return None if isinstance(tensor, AbsentTensor) else tensor.numpy()
    producer = value.producer() if value is not None else None
    if producer is None or producer.op_type != "ConstantOfShape" or producer.domain != "":
        return None
    shape = numbers(producer.inputs[0])
    if shape is None or shape.prod() > _SMALL:
        return None
    fill = producer.attributes.get_tensor("value")
    one = np.zeros(1, np.float32) if fill is None else fill.numpy()
    return np.full([int(extent) for extent in shape], one.reshape(-1)[0], one.dtype)


def is_known(value: ir.Value | None) -> bool:
    """Whether `value` is a constant, or computed from constants alone; but not if it is stored quantized.

    Those are for operators that take them as they are.
    """
    return value is not None and hangs_on_constants(value, never=_NEVER_KNOWN)


def extents(value: ir.Value) -> tuple[int, ...] | None:
    """A value's shape, where all of it is known."""
    shape = value.shape
    return tuple(int(extent) for extent in shape) if shape is not None and shape.is_static() else None  # type: ignore[arg-type]


def volume(value: ir.Value, axes: Iterable[int]) -> int:
    """The product of these extents; an unknown name counts 64, also in a formula such as `h*w`, an unknown batch 1. In
    a formula that is 0 or less with 64, as behind the strides of a long signal, names count the first usual size with
    which it is more.

    The batch is the first axis in the source's order, so that it is the same one when a legal model is read again.
    """
    shape = value.shape
    assert shape is not None
    batch = first_axis(value)

    def extent(axis: int) -> int:
        dim = shape[axis]
        if isinstance(dim, int):
            return dim
        sizes = (formula_size(dim.value or "", {}, size) or 0 for size in (UNKNOWN, *USUAL))
        return 1 if axis == batch else next((size for size in sizes if size > 0), UNKNOWN)

    return prod(extent(axis) for axis in axes)


def attributes(node: ir.Node, *names: str) -> dict[str, Any]:
    """Those of the attributes `names` that the node has."""
    return {name: node.attributes[name].value for name in names if name in node.attributes}
