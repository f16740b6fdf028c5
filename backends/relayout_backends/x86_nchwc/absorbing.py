"""The operators after a blocked convolution that it can absorb: factors and offsets of its channels, activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.layout.metadata_keys import CHANNELS_KEY
from relayout.layout.relaid_constant import AbsentTensor
from relayout_backends.x86_nchwc.blocks import DOMAIN, block_of
from relayout_backends.x86_nchwc.shapes import constant, numbers

Vector = np.ndarray[Any, np.dtype[np.float64]]
Affine = tuple[Vector | None, Vector | None]
"""A factor and an offset for each channel, in the blocks' order; None for no change."""

ACTIVATIONS = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})
"""The operators that a blocked convolution may do as its last."""

_LOWEST, _HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a blocked value: the number in memory, of these `used` without padding, `block` to a block.

    `shape` is its blocked layout as a tensor: [N, C/block, H, W, block].
    """

    count: int
    used: int
    block: int
    shape: tuple[object, ...]

    @classmethod
    def of(cls, convolution: ir.Node) -> Channels:
        """Those of the result of a blocked convolution that this backend wrote."""
        kernel, shape, block = convolution.inputs[1], convolution.outputs[0].shape, block_of(convolution)
        assert kernel is not None
        assert kernel.shape is not None
        assert shape is not None
        assert block is not None
        count = int(kernel.shape[0])  # type: ignore[arg-type]
        batch, _, height, width = shape
        used = int(convolution.metadata_props.get(CHANNELS_KEY, count))
        return cls(count, used, block, (batch, count // block, height, width, block))


def has_data(value: ir.Value | None) -> bool:
    """Whether `value` is a constant whose data is at hand."""
    tensor = constant(value)
    return tensor is not None and not isinstance(tensor, AbsentTensor)


def affine_of(node: ir.Node, value: ir.Value, blocks: Channels) -> Affine | None:
    """The factors and offsets of `node` for the channels of `value`, or of a view of it; None for another operator."""
    if _is_normalization(node, blocks.count):
        kernel, bias = numbers(node.inputs[1]), numbers(node.inputs[2]) if len(node.inputs) > 2 else None
        return None if kernel is None else (_vector(kernel), None if bias is None else _vector(bias))
    if node.domain != "" or node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
        return None
    place = 0 if node.inputs[0] is value else 1
    vector = _per_channel(node.inputs[1 - place], value, blocks)
    if vector is None:
        return None
    if node.op_type == "Mul":
        return vector, None
    if node.op_type == "Add":
        return None, vector
    if node.op_type == "Sub":
        return (None, -vector) if place == 0 else (np.full(blocks.count, -1.0), vector)
    # The padding is zero for every divisor.
    return (1 / np.where(vector == 0, np.inf, vector), None) if place == 0 and vector[: blocks.used].all() else None


def activation_of(node: ir.Node, is_padded: bool) -> dict[str, Any] | None:
    """The attributes by which a blocked convolution runs the activation `node`; None if it cannot.

    The padding must stay zero.
    """
    if node.domain != "":
        return None
    kind = node.op_type
    if kind in ("Relu", "Tanh", "HardSwish") or (kind == "Sigmoid" and not is_padded):
        return {"activation": kind}
    if kind == "LeakyRelu":
        return {"activation": kind, "activation_params": [node.attributes.get_float("alpha", 0.01)]}
    if kind == "HardSigmoid" and not is_padded:
        params = [node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)]
        return {"activation": kind, "activation_params": params}
    if kind == "Clip":
        low, high = _bound(node, 1, "min", _LOWEST), _bound(node, 2, "max", _HIGHEST)
        if low is not None and high is not None and (low <= 0 <= high or not is_padded):
            return {"activation": kind, "activation_params": [low, high]}
    return None


def _bound(node: ir.Node, place: int, attribute: str, default: float) -> float | None:
    """One bound of a Clip; None where it is unknown."""
    operand = node.inputs[place] if len(node.inputs) > place else None
    if operand is None:
        return node.attributes.get_float(attribute, default)
    array = numbers(operand)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _is_normalization(node: ir.Node, channels: int) -> bool:
    """Whether `node` is a blocked batch normalization: a depthwise convolution of one position only."""
    if node.domain != DOMAIN or node.op_type != "Conv" or len(node.inputs) > 3:
        return False
    kernel = node.inputs[1]
    plain = not any(node.attributes.get_ints("pads", ())) and set(node.attributes.get_ints("strides", (1,))) == {1}
    return (
        plain
        and kernel is not None
        and kernel.shape is not None
        and list(kernel.shape) == [channels, 1, 1, 1]
        and node.attributes.get_int("group", 1) == channels
        and numbers(kernel) is not None
        and (len(node.inputs) < 3 or numbers(node.inputs[2]) is not None)
    )


def _per_channel(operand: ir.Value | None, value: ir.Value, blocks: Channels) -> Vector | None:
    """A constant with a number for each channel of `value`, or one for all of them, in the blocks' order."""
    if operand is None or value.shape is None or not has_data(operand):
        return None
    tensor = constant(operand)
    assert tensor is not None
    if tensor.size == 1:
        vector = np.zeros(blocks.count)
        vector[: blocks.used] = _vector(tensor.numpy())[0]
        return vector
    shape = _aligned(tensor.shape.numpy(), len(value.shape))
    if shape is None or tensor.size > blocks.count:
        return None
    if tuple(value.shape) == blocks.shape and shape[0] == shape[2] == shape[3] == 1:
        parts = tensor.numpy().reshape(shape[1], shape[4])
        return _vector(np.broadcast_to(parts, (blocks.count // blocks.block, blocks.block)))
    batch, count, *image, block = blocks.shape
    if count == 1 and tuple(value.shape) == (batch, *image, block) and shape == [1, 1, 1, block]:
        return _vector(tensor.numpy())  # one block, channels last
    one_place = len(shape) == 4 and value.shape[2] == value.shape[3] == 1
    return _vector(tensor.numpy()) if one_place and shape[1] == tensor.size == blocks.count else None


def _aligned(shape: Sequence[int], rank: int) -> list[int] | None:
    """A constant's shape with dimensions of extent 1 before it, up to `rank`; None where it has more."""
    return [1] * (rank - len(shape)) + [int(extent) for extent in shape] if len(shape) <= rank else None


def _vector(array: np.ndarray[Any, Any]) -> Vector:
    return np.asarray(array, np.float64).reshape(-1)
