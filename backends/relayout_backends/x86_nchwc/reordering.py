"""onnxruntime's own conversions from plain to blocked data and back: ReorderInput and ReorderOutput.

Both convert channels-first and channels-last data, so channels last to blocked is one node and not two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

from relayout.backend import Extents, Reordering, TensorType, Writing
from relayout.layout.layout import Layout
from relayout_backends.x86_nchwc.blocks import DOMAIN, Blocks, zeros_after
from relayout_backends.x86_nchwc.costs import SCATTERED
from relayout_backends.x86_nchwc.shapes import UNKNOWN

_FLOAT = 4
"""The size of an element of the only type that the operators take."""

_GRAIN = 4
"""ReorderInput needs a multiple of four channels; other data is padded with zeros first."""


def reordering(tensor: TensorType, source: Layout, target: Layout, blocks: Blocks) -> Reordering | None:
    """onnxruntime's operators from `source` to `target`, or None where it has none."""
    if tensor.element_size != _FLOAT:
        return None
    given = _extents(source, tensor.shape)
    shape = _blocked(source, given, blocks)
    if shape is not None:
        last = _channels_last(target)
        if last is None:
            return None
        return Reordering(rewrite=partial(_to_plain, channels_last=last, blocks=blocks, shape=shape))
    last = _channels_last(source)
    shape = _blocked(target, given, blocks)
    channels = given.get("C")
    if last is None or shape is None or not isinstance(channels, int):
        return None
    rewrite = partial(_to_blocks, channels_last=last, channels=channels, blocks=blocks, shape=shape)
    if channels % _GRAIN == 0:
        return Reordering(rewrite=rewrite)
    count = _count(tensor.shape)
    filled, whole = _filled(channels), blocks.padded(channels)
    # Read and written once to pad the channels, and once to reorder them.
    return Reordering(_FLOAT * (count // channels) * (channels + 2 * filled + whole), rewrite)


def scattering(tensor: TensorType, source: Layout, target: Layout) -> int | None:
    """The cost of a Transpose that moves elements one by one: a shuffle that leaves no row whole. None for all else.

    Only numbered layouts have an answer, so that a Transpose costs the same whether or not its axes have names.
    """
    if not source.is_numbered or not _leaves_no_row(tensor.shape, [int(axis) for axis in target.names]):
        return None
    return SCATTERED * 2 * tensor.element_size * _count(tensor.shape)


def _leaves_no_row(shape: Extents, perm: Sequence[int]) -> bool:
    """Whether the innermost axis moves, and another one too: onnxruntime copies rows, or moves one axis in large steps,
    where it can. Axes of extent 1 do not count, and neighbours that stay neighbours count as one."""
    known = sorted(axis for axis in perm if shape[axis] != 1)
    places = [known.index(axis) for axis in perm if shape[axis] != 1]
    moved = [place for n, place in enumerate(places) if n == 0 or place != places[n - 1] + 1]
    others = ([place for place in moved if place != one] for one in moved)
    return bool(places) and places[-1] != max(places) and all(rest != sorted(rest) for rest in others)


def _count(shape: Extents) -> int:
    return prod(extent if isinstance(extent, int) else UNKNOWN if place else 1 for place, extent in enumerate(shape))


def _extents(layout: Layout, shape: Extents) -> dict[str, int | str | None]:
    """The extent of each axis by its name, without padding."""
    found: dict[str, int | str | None] = {}
    for place, (letter, extent) in enumerate(zip(layout.names, shape, strict=True)):
        outer = layout.outer(place)
        whole = found.get(letter.upper()) if outer is not None else extent
        if outer is not None and isinstance(whole, int) and isinstance(extent, int):
            whole *= extent
        found[letter if outer is None else layout.names[outer]] = whole
    for place, letter in enumerate(layout.names):
        padding, whole = _padding(layout, place), found.get(letter)
        if padding and isinstance(whole, int):
            found[letter] = whole - padding
    return found


def _blocked(layout: Layout, extents: Mapping[str, int | str | None], blocks: Blocks) -> Extents | None:
    """[N, C, H, W] with the padding of C, where a tensor of these extents is blocked in this layout; else None.

    A tensor of less than one block has its channels last and padded: its dimension of blocks has extent 1. The reorders
    fill up the last block, and nothing else.
    """
    channels = extents.get("C")
    if sorted(extents) != ["C", "H", "N", "W"] or not isinstance(channels, int):
        return None
    whole = blocks.padded(channels)
    shape = (extents["N"], whole, extents["H"], extents["W"])
    padded = {layout.names[place]: zeros for place in range(layout.rank) if (zeros := _padding(layout, place))}
    if padded != ({"C": whole - channels} if whole > channels else {}):
        return None
    if blocks.is_blocked(layout):
        return shape
    if sorted(layout.names) != sorted(extents) or extents["H"] == extents["W"] == 1:
        return None
    order = "".join(letter for letter in layout.names if letter == "C" or extents[letter] != 1)
    in_place = order == "".join(letter for letter in "NHWC" if letter in order)
    return shape if padded and whole == blocks.size and in_place else None


def _padding(layout: Layout, place: int) -> int:
    """The number of zeros at the end of a dimension."""
    boxes = dict(layout.boxes(place))
    return int(boxes["pad"]) if boxes.get("pad", "").isdecimal() else 0


def _filled(channels: int) -> int:
    return -(-channels // _GRAIN) * _GRAIN


def _channels_last(layout: Layout) -> bool | None:
    """Whether a plain layout of four dims has its channels last; None where it is neither NCHW nor NHWC."""
    return {"NCHW": False, "NHWC": True}.get(layout.names) if str(layout) == layout.names else None


def _to_blocks(writing: Writing, *, channels_last: bool, channels: int, blocks: Blocks, shape: Extents) -> None:
    data = writing.read(0)
    if channels % _GRAIN:
        whole, axis, filled = list(writing.shape_of(0)), 3 if channels_last else 1, _filled(channels)
        whole[axis] = filled
        data = zeros_after(writing, data, whole, axis, filled - channels)
    blocks.write(writing, "ReorderInput", [data], {"channels_last": int(channels_last)}, channels, shape)


def _to_plain(writing: Writing, *, channels_last: bool, blocks: Blocks, shape: Extents) -> None:
    result = writing.shape_of(0, is_result=True)
    channels = result[3 if channels_last else 1]
    assert isinstance(channels, int)
    chosen = {"channels": channels, "channels_last": int(channels_last)}
    data = writing.read(0, shape=shape)
    plain = writing.emit("ReorderOutput", [data], chosen, shape=result, domain=DOMAIN)
    blocks.note(plain, channels)
    writing.set_result(0, plain)
