"""Conv on NumPy arrays of any type: no runtime has a fast kernel for float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx

from relayout.verification.numeric.inputs import Array

__all__ = ["convolve"]


def convolve(node: onnx.NodeProto, picture: Array, kernel: Array, bias: Array | None = None) -> Array:
    """ONNX's Conv: `picture` is [N, C, *space], `kernel` [M, C / group, *window], `bias` [M]."""
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    window = kernel.shape[2:]
    strides = given.get("strides") or [1] * len(window)
    dilations = given.get("dilations") or [1] * len(window)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(window, dilations, strict=True)]
    padded = np.pad(picture, [(0, 0), (0, 0), *_pads(given, picture.shape[2:], reach, strides)])
    extents = [(size - one) // step + 1 for size, one, step in zip(padded.shape[2:], reach, strides, strict=True)]
    groups = int(given.get("group", 1))
    batch, channels = picture.shape[:2]
    weights = kernel.reshape(groups, kernel.shape[0] // groups, kernel.shape[1], *window)
    weights = np.moveaxis(weights, (0, 1, 2), (-3, -2, -1))
    result = np.zeros((batch, groups, weights.shape[-2], int(np.prod(extents))), picture.dtype)
    for place in itertools.product(*map(range, window)):
        cut = [
            slice(at * dilation, at * dilation + (extent - 1) * step + 1, step)
            for at, dilation, extent, step in zip(place, dilations, extents, strides, strict=True)
        ]
        seen = padded[(slice(None), slice(None), *cut)].reshape(batch, groups, channels // groups, -1)
        # One product of matrices for each channel is slower than a product of all elements.
        result += weights[place] * seen if channels == groups else weights[place] @ seen
    result = result.reshape(batch, kernel.shape[0], *extents)
    return result if bias is None else result + bias.reshape(-1, *[1] * len(window))


def _pads(
    given: dict[str, Any], extents: tuple[int, ...], reach: list[int], strides: list[int]
) -> list[tuple[int, int]]:
    """The padding before and after each spatial axis."""
    mode = given.get("auto_pad", b"NOTSET").decode()
    if not mode.startswith("SAME"):
        pads = given.get("pads") if mode == "NOTSET" else None
        pads = pads or [0] * (2 * len(extents))
        return list(zip(pads[: len(extents)], pads[len(extents) :], strict=True))
    missing = [
        max(0, (-(-extent // step) - 1) * step + one - extent)
        for extent, one, step in zip(extents, reach, strides, strict=True)
    ]
    halves = [(each // 2, each - each // 2) for each in missing]
    return halves if mode == "SAME_UPPER" else [(after, before) for before, after in halves]
