"""onnxruntime's own operators from plain to blocked data and back: ReorderInput and ReorderOutput.

Each reads or writes channels first or last alike, so channels last to blocked is one node and not two.
"""

from __future__ import annotations

from functools import partial
from math import prod

from relayout.backend import Reordering, TensorType
from relayout.layout import Layout
from relayout.writing import Writing
from relayout_backends.x86_nchwc.blocks import DOMAIN, Blocks, zeros_after
from relayout_backends.x86_nchwc.shapes import UNKNOWN

__all__ = ["reordering"]

_FLOAT = 4
"""The size of an element of the only type that the operators take."""

_GRAIN = 4
"""ReorderInput takes channels by fours: others are filled up with zeros first."""


def reordering(tensor: TensorType, source: Layout, target: Layout, blocks: Blocks) -> Reordering | None:
    """How onnxruntime makes `target` from `source`, or None where it has no operator for that."""
    if tensor.element_size != _FLOAT:
        return None
    if blocks.is_blocked(source):
        last = _channels_last(target)
        return None if last is None else Reordering(rewrite=partial(_to_plain, channels_last=last, blocks=blocks))
    last = _channels_last(source)
    channels = tensor.shape[3 if last else 1] if last is not None and blocks.is_blocked(target) else None
    if last is None or not isinstance(channels, int):
        return None
    rewrite = partial(_to_blocks, channels_last=last, channels=channels, blocks=blocks)
    if channels % _GRAIN == 0:
        return Reordering(rewrite=rewrite)
    count = prod(
        extent if isinstance(extent, int) else UNKNOWN if place else 1 for place, extent in enumerate(tensor.shape)
    )
    filled, whole = _filled(channels), blocks.padded(channels)
    # Read and written once to fill up the channels, and once to reorder them.
    return Reordering(_FLOAT * (count // channels) * (channels + 2 * filled + whole), rewrite)


def _filled(channels: int) -> int:
    return -(-channels // _GRAIN) * _GRAIN


def _channels_last(layout: Layout) -> bool | None:
    """Whether a plain layout of four dims has its channels last; None where it is neither NCHW nor NHWC."""
    return {"NCHW": False, "NHWC": True}.get(layout.names) if str(layout) == layout.names else None


def _to_blocks(writing: Writing, *, channels_last: bool, channels: int, blocks: Blocks) -> None:
    data = writing.read(0)
    if channels % _GRAIN:
        shape, axis, filled = list(writing.shape_of(0)), 3 if channels_last else 1, _filled(channels)
        shape[axis] = filled
        data = zeros_after(writing, data, shape, axis, filled - channels)
    blocks.write(writing, "ReorderInput", [data], {"channels_last": int(channels_last)}, channels)


def _to_plain(writing: Writing, *, channels_last: bool, blocks: Blocks) -> None:
    shape = writing.shape_of(0, is_result=True)
    channels = shape[3 if channels_last else 1]
    assert isinstance(channels, int)
    chosen = {"channels": channels, "channels_last": int(channels_last)}
    plain = writing.emit("ReorderOutput", [blocks.read(writing)], chosen, shape=shape, domain=DOMAIN)
    blocks.note(plain, channels)
    writing.give(0, plain)
