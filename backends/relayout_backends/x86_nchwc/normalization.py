"""BatchNormalization as onnxruntime itself blocks it: a depthwise convolution of one position, with a bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.backend import Implementation, Writing
from relayout_backends.x86_nchwc.blocks import Blocks, blocked_way, zeros_after
from relayout_backends.x86_nchwc.shapes import channels_of, extents, is_float_image, numbers

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]


def normalization(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """The blocked implementation; None where the statistics are those of the data itself."""
    if not is_float_image(node.inputs[0]) or len(node.inputs) < 5 or node.attributes.get_int("training_mode", 0) != 0:
        return None
    channels = channels_of(node.inputs[0])
    if any(value is None or extents(value) != (channels,) for value in node.inputs[1:5]) or len(node.outputs) > 1:
        return None
    padded = blocks.padded(channels)

    def rewrite(writing: Writing) -> None:
        known = [numbers(value) for value in node.inputs[1:5]]
        if any(vector is None for vector in known):
            factor, offset = _computed(writing, channels, padded)
        else:
            factor, offset = _stored(writing, [vector for vector in known if vector is not None], padded)
        blocks.write(writing, "Conv", [blocks.read(writing), factor, offset], {"group": padded}, channels)

    return blocked_way(node, blocks, rewrite)


def _epsilon(node: ir.Node) -> float:
    return node.attributes.get_float("epsilon", 1e-5)


def _stored(writing: Writing, known: list[Array], padded: int) -> tuple[ir.Value, ir.Value]:
    """The factor of each channel as a kernel, and the offset; zero in the padding."""
    scale, shift, mean, variance = (vector.astype(np.float64) for vector in known)
    factor = scale / np.sqrt(variance + _epsilon(writing.node))
    offset = shift - mean * factor
    kernel, bias = (np.pad(vector, (0, padded - len(vector))).astype(np.float32) for vector in (factor, offset))
    stem = writing.node.outputs[0].name
    return writing.constant(f"{stem}_factor", kernel.reshape(padded, 1, 1, 1)), writing.constant(f"{stem}_offset", bias)


def _computed(writing: Writing, channels: int, padded: int) -> tuple[ir.Value, ir.Value]:
    """The same where the caller may replace the parameters, or their data is absent: a few vectors at run time."""
    scale, shift, mean, variance = (writing.read(place) for place in range(1, 5))
    epsilon = writing.constant("epsilon", np.array(_epsilon(writing.node), np.float32))
    shape = (channels,)
    spread = writing.emit("Sqrt", [writing.emit("Add", [variance, epsilon], shape=shape)], shape=shape)
    factor = writing.emit("Div", [scale, spread], shape=shape)
    offset = writing.emit("Sub", [shift, writing.emit("Mul", [mean, factor], shape=shape)], shape=shape)
    if padded > channels:
        factor, offset = (zeros_after(writing, vector, (padded,), 0, padded - channels) for vector in (factor, offset))
    kernel = (padded, 1, 1, 1)
    return writing.emit(
        "Reshape", [factor, writing.constant("shape", np.array(kernel, np.int64))], shape=kernel
    ), offset
