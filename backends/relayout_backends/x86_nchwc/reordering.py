"""onnxruntime's own operators from plain to blocked data and back: ReorderInput and ReorderOutput.

Each reads or writes channels first or last alike, so channels last to blocked is one node and not two.
"""

from __future__ import annotations

from relayout.backend import Reordering, TensorType
from relayout.layout import Layout
from relayout.writing import Writing
from relayout_backends.x86_nchwc.blocks import DOMAIN, Blocks

__all__ = ["reordering"]

_FLOAT = 4
"""The size of an element of the only type that the operators take."""

_GRAIN = 4
"""ReorderInput takes channels by fours."""


def reordering(tensor: TensorType, source: Layout, target: Layout, blocks: Blocks) -> Reordering | None:
    """How onnxruntime makes `target` from `source`, or None where it has no operator for that."""
    if tensor.element_size != _FLOAT:
        return None
    last = _channels_last(target) if source == blocks.layout else _channels_last(source)
    if last is None:
        return None
    if source == blocks.layout:
        return Reordering(rewrite=lambda writing: _to_plain(writing, last, blocks))
    channels = tensor.shape[3 if last else 1] if target == blocks.layout else None
    if not isinstance(channels, int) or channels % _GRAIN:
        return None
    return Reordering(rewrite=lambda writing: _to_blocks(writing, last, channels, blocks))


def _channels_last(layout: Layout) -> bool | None:
    """Whether a plain layout of four dims has its channels last; None where it is neither NCHW nor NHWC."""
    return {"NCHW": False, "NHWC": True}.get(layout.names) if str(layout) == layout.names else None


def _to_blocks(writing: Writing, channels_last: bool, channels: int, blocks: Blocks) -> None:
    blocks.write(writing, "ReorderInput", [writing.read(0)], {"channels_last": int(channels_last)}, channels)


def _to_plain(writing: Writing, channels_last: bool, blocks: Blocks) -> None:
    shape = writing.shape_of(0, is_result=True)
    channels = shape[3 if channels_last else 1]
    assert isinstance(channels, int)
    chosen = {"channels": channels, "channels_last": int(channels_last)}
    plain = writing.emit("ReorderOutput", [blocks.read(writing)], chosen, shape=shape, domain=DOMAIN)
    blocks.note(plain, channels)
    writing.give(0, plain)
