"""Conv on NumPy arrays of any type: no runtime has a fast kernel for float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view

from relayout.verification.numeric.inputs import Array

__all__ = ["convolve"]


# Elements of the windows that one product of matrices reads: 32 MiB.
_AT_ONCE = 1 << 22


def convolve(node: onnx.NodeProto, picture: Array, kernel: Array, bias: Array | None = None) -> Array:
    """ONNX's Conv: `picture` is [N, C, *space], `kernel` [M, C / group, *window], `bias` [M].

    Some rows at a time, the elements of each window become a column of a matrix (im2col).
    """
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    batch, channels, *space = picture.shape
    window = kernel.shape[2:]
    rank, strides = len(window), given.get("strides") or [1] * len(window)
    dilations = given.get("dilations") or [1] * rank
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(window, dilations, strict=True)]
    padded = np.pad(picture, [(0, 0), (0, 0), *_pads(given, tuple(space), reach, strides)])
    seen = sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    seen = seen[(slice(None), slice(None), *steps)]
    extents = seen.shape[2 : 2 + rank]
    windows = np.moveaxis(seen, range(2 + rank, 2 + 2 * rank), range(2, 2 + rank))
    groups = int(given.get("group", 1))
    weights = kernel.reshape(groups, kernel.shape[0] // groups, -1)
    result = np.empty((batch, kernel.shape[0], *extents), picture.dtype)
    rows = max(1, _AT_ONCE // max(1, batch * channels * math.prod((*window, *extents[1:]))))
    for start in range(0, extents[0], rows):
        columns = windows[(slice(None), slice(None), *[slice(None)] * rank, slice(start, start + rows))]
        made = weights @ columns.reshape(batch, groups, weights.shape[-1], -1)
        part = result[:, :, start : start + rows]
        part[...] = made.reshape(part.shape)
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


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
