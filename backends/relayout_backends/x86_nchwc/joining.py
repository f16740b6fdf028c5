"""Concat, Split and Slice of blocked values, along the channels in whole blocks.

The channels of a value are known from the graph's axis names. When the node is written, its axis is the dimension whose
extent differs in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.backend import Extents, Implementation, Writing, rank_of
from relayout.layout.layout import Layout
from relayout.model.constants import hangs_on_constants
from relayout_backends.x86_nchwc.blocks import Blocks
from relayout_backends.x86_nchwc.shapes import is_float, numbers

if TYPE_CHECKING:
    import onnx_ir as ir

_CHANNELS = 1


def concatenation(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """Concat: only the last operand may end within a block, or padding would be between channels.

    The channels of a constant operand are unknown, because it has no axis names of its own.
    """
    axis = node.attributes.get_int("axis", 0) % 4
    extents = [_extent(value, axis) for value in node.inputs]
    if any(value is not None and hangs_on_constants(value) for value in node.inputs):
        return None
    if None in extents or any(extent % blocks.size for extent in extents[:-1] if extent is not None):
        return None

    def rewrite(writing: Writing) -> None:
        place = _place(writing)
        operands = [_read(writing, blocks, index, place) for index in range(len(node.inputs))]
        shape = _shape(writing, blocks, 0, place)
        writing.set_result(0, writing.emit("Concat", operands, {"axis": place}, shape=shape))

    return _way(node, blocks, range(len(node.inputs)), rewrite)


def splitting(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """Split, where each part but the last has whole blocks."""
    axis = node.attributes.get_int("axis", 0) % 4
    parts = [_extent(value, axis) for value in node.outputs]
    if _extent(node.inputs[0], axis) is None or len(parts) < 2 or None in parts:
        return None
    if any(part % blocks.size for part in parts[:-1] if part is not None):
        return None

    def rewrite(writing: Writing) -> None:
        place = _place(writing)
        data = _read(writing, blocks, 0, place)
        start = 0
        for index in range(len(node.outputs)):
            shape = _shape(writing, blocks, index, place)
            length = shape[place]
            assert isinstance(length, int)
            # One Slice a part: an emitted node has one result.
            part = _sliced(writing, data, place, start, start + length, shape)
            start += length
            writing.set_result(index, part)

    return _way(node, blocks, (0,), rewrite)


def slicing(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """Slice along one axis, from the beginning of a block, in steps of one."""
    found = _one_slice(node)
    if found is None:
        return None
    axis, start = found
    before, after = _extent(node.inputs[0], axis), _extent(node.outputs[0], axis)
    if before is None or after is None or before == after or start % blocks.size:
        return None
    if after % blocks.size and start + after != before:
        return None

    def rewrite(writing: Writing) -> None:
        place = _place(writing)
        shape = _shape(writing, blocks, 0, place)
        length = shape[place]
        assert isinstance(length, int)
        data = _read(writing, blocks, 0, place)
        writing.set_result(0, _sliced(writing, data, place, start, start + length, shape))

    return _way(node, blocks, (0,), rewrite)


def _way(node: ir.Node, blocks: Blocks, blocked: Sequence[int], rewrite: Any) -> Implementation:
    inputs = [
        blocks.layout if index in blocked else Layout.any(rank_of(value)) for index, value in enumerate(node.inputs)
    ]
    return Implementation(tuple(inputs), (blocks.layout,) * len(node.outputs), rewrite=rewrite, pads=True)


def _extent(value: ir.Value | None, axis: int) -> int | None:
    """The extent along `axis` of a float32 tensor whose four extents, but for the batch, are known."""
    if value is None or not is_float(value) or value.shape is None or len(value.shape) != 4:
        return None
    if not all(isinstance(extent, int) and extent > 0 for extent in list(value.shape)[1:]):
        return None
    extent = value.shape[axis]
    return extent if isinstance(extent, int) else None


def _place(writing: Writing) -> int:
    """The blocked dimension along which the node works: the one that is longer on one side than on the other. A Concat
    of one operand may work along any."""
    before, after = writing.shape_of(0), writing.shape_of(0, is_result=True)
    return next((place for place, (a, b) in enumerate(zip(before, after, strict=True)) if a != b), 0)


def _read(writing: Writing, blocks: Blocks, index: int, place: int) -> ir.Value:
    """Input `index`, with the shape of the blocked operators where it is split between blocks or images."""
    return blocks.read(writing, index) if place <= _CHANNELS else writing.read(index)


def _shape(writing: Writing, blocks: Blocks, index: int, place: int) -> Extents:
    shape = writing.shape_of(index, is_result=True)
    return blocks.hidden(shape) if place <= _CHANNELS else shape


def _sliced(writing: Writing, data: ir.Value, place: int, start: int, end: int, shape: Extents) -> ir.Value:
    if writing.opset < 10:
        return writing.emit("Slice", [data], {"axes": [place], "starts": [start], "ends": [end]}, shape=shape)
    bounds = [
        writing.constant(stem, np.array([n], np.int64)) for stem, n in (("start", start), ("end", end), ("axis", place))
    ]
    return writing.emit("Slice", [data, *bounds], shape=shape)


def _one_slice(node: ir.Node) -> tuple[int, int] | None:
    """The axis and the start of a Slice along one axis in steps of one; None for any other."""
    source = node.inputs[0]
    starts: Sequence[int] | None
    axes: Sequence[int] | None
    steps: Sequence[int] | None = (1,)
    if "starts" in node.attributes:
        starts, axes = node.attributes.get_ints("starts"), node.attributes.get_ints("axes", (0,))
    else:
        starts, axes = _ints(node, 1), _ints(node, 3) if len(node.inputs) > 3 else (0,)
        steps = _ints(node, 4) if len(node.inputs) > 4 else (1,)
    if starts is None or axes is None or steps is None or source is None or rank_of(source) != 4:
        return None
    if len(starts) != 1 or len(axes) != 1 or set(steps) != {1}:
        return None
    axis = axes[0] % 4
    extent = _extent(source, axis)
    if extent is None:
        return None
    start = starts[0] + extent if starts[0] < 0 else starts[0]
    return axis, max(0, min(start, extent))


def _ints(node: ir.Node, place: int) -> tuple[int, ...] | None:
    array = numbers(node.inputs[place]) if len(node.inputs) > place else None
    return tuple(int(n) for n in array.reshape(-1)) if array is not None else None
