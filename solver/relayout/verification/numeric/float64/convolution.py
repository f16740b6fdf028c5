"""Conv, ConvTranspose and AveragePool on NumPy arrays of any type: no runtime has a fast kernel for float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view

from relayout.model.proto_graphs import attributes_of
from relayout.verification.numeric.inputs import Array

# Elements of the windows that one product of matrices reads: 32 MiB.
_AT_ONCE = 1 << 22


def convolve(node: onnx.NodeProto, picture: Array, kernel: Array, bias: Array | None = None) -> Array:
    """ONNX's Conv: `picture` is [N, C, *space], `kernel` [M, C / group, *window], `bias` [M].

    Some rows at a time, the elements of each window become a column of a matrix (im2col).
    """
    given = attributes_of(node)
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
        # Of a batch of none, NumPy cannot tell an extent of -1.
        made = weights @ columns.reshape(batch, groups, weights.shape[-1], math.prod(columns.shape[2 + rank :]))
        part = result[:, :, start : start + rows]
        part[...] = made.reshape(part.shape)
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def is_plain(node: onnx.NodeProto) -> bool:
    """Whether nothing but the pads gives the extents of the result."""
    given = attributes_of(node)
    return (
        given.get("auto_pad", b"NOTSET") == b"NOTSET" and not given.get("output_shape") and not given.get("ceil_mode")
    )


def convolve_transposed(node: onnx.NodeProto, picture: Array, kernel: Array, bias: Array | None = None) -> Array:
    """ONNX's ConvTranspose, if it `is_plain`: `picture` is [N, C, *space], `kernel` [C, M / group, *window], and `bias`
    [M].

    Each element of the window adds a product of matrices to the result, at the strides.
    """
    given = attributes_of(node)
    batch, channels, *space = picture.shape
    each, window = kernel.shape[1], kernel.shape[2:]
    rank, groups = len(window), int(given.get("group", 1))
    strides, dilations = (given.get(name) or [1] * rank for name in ("strides", "dilations"))
    more, pads = given.get("output_padding") or [0] * rank, given.get("pads") or [0] * (2 * rank)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(window, dilations, strict=True)]
    whole = [(n - 1) * step + own + extra for n, step, own, extra in zip(space, strides, reach, more, strict=True)]
    result = np.zeros((batch, groups * each, *whole), picture.dtype)
    columns = picture.reshape(batch, groups, channels // groups, math.prod(space))
    weights = kernel.reshape(groups, channels // groups, each, *window)
    for place in np.ndindex(*window):
        made = np.swapaxes(weights[(slice(None), slice(None), slice(None), *place)], 1, 2) @ columns
        result[_steps(place, dilations, space, strides)] += made.reshape(batch, groups * each, *space)
    inside = [slice(pads[n], whole[n] - pads[rank + n]) for n in range(rank)]
    result = result[(slice(None), slice(None), *inside)]
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def average(node: onnx.NodeProto, picture: Array) -> Array:
    """ONNX's AveragePool, if it `is_plain`: `picture` is [N, C, *space]."""
    given = attributes_of(node)
    space, window = picture.shape[2:], given["kernel_shape"]
    rank = len(window)
    strides, dilations = (given.get(name) or [1] * rank for name in ("strides", "dilations"))
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(window, dilations, strict=True)]
    around = [(0, 0), (0, 0), *_pads(given, space, reach, strides)]
    padded = np.pad(picture, around)
    counted = np.pad(np.ones((1, 1, *space)), around, constant_values=float(bool(given.get("count_include_pad"))))
    extents = [(size - own) // step + 1 for size, own, step in zip(padded.shape[2:], reach, strides, strict=True)]
    places = [_steps(place, dilations, extents, strides) for place in np.ndindex(*window)]
    total, number = (reduce(add, (each[place] for place in places)) for each in (padded, counted))
    return np.asarray(total / number)


def _steps(
    place: Sequence[int], dilations: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> tuple[slice, ...]:
    """The positions, on all axes of a picture, of one element of the window in all its places."""
    starts = [n * dilation for n, dilation in zip(place, dilations, strict=True)]
    steps = (
        slice(start, start + (extent - 1) * step + 1, step)
        for start, extent, step in zip(starts, extents, strides, strict=True)
    )
    return (slice(None), slice(None), *steps)


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
