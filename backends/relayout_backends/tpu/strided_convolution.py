"""The convolution that a node computes, where all its extents are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayout.backend import rank_of
from relayout.model.constants import hangs_on_constants
from relayout.ops.operand_roles import spatial_letters

if TYPE_CHECKING:
    import onnx_ir as ir

UNKNOWN_BATCH = 1

_NEVER_KNOWN = frozenset({"DequantizeLinear"})
"""Its readers are integer convolutions."""


@dataclass(frozen=True, slots=True)
class StridedConvolution:
    """A Conv without groups whose kernel is a constant, or computed from constants: its extents, those of spatial axes
    in the axes' order.

    `kernel_perm` makes spatial axes, I, O of the kernel as the node has it; `pads` has (begin, end) for each axis.
    """

    batch: int
    channels: int
    outputs: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    element_size: int
    kernel_perm: tuple[int, ...]


def strided_convolution(node: ir.Node) -> StridedConvolution | None:
    """The convolution of `node`; None if it is another operator, or if an extent other than the batch is unknown."""
    if node.op_type != "Conv" or node.domain != "" or node.attributes.get_int("group", 1) != 1:
        return None
    data, kernel = node.inputs[:2]
    spatial = spatial_letters(rank_of(data))
    if data is None or kernel is None or spatial is None or rank_of(kernel) != rank_of(data):
        return None
    if data.dtype is None or kernel.is_graph_input() or not hangs_on_constants(kernel, never=_NEVER_KNOWN):
        return None
    window = _extents(kernel, "OI" + spatial)
    image = {"N": UNKNOWN_BATCH, **_extents(data, "NC" + spatial)}
    if not {*"C" + spatial} <= image.keys() or not {*"OI" + spatial} <= window.keys():
        return None
    sizes, taps = [image[letter] for letter in spatial], [window[letter] for letter in spatial]
    strides = node.attributes.get_ints("strides") or [1] * len(spatial)
    dilations = node.attributes.get_ints("dilations") or [1] * len(spatial)
    reach = [(extent - 1) * dilation + 1 for extent, dilation in zip(taps, dilations, strict=True)]
    how, given = node.attributes.get_string("auto_pad", "NOTSET"), node.attributes.get_ints("pads") or ()
    return StridedConvolution(
        image["N"],
        image["C"],
        window["O"],
        tuple(sizes),
        tuple(taps),
        tuple(strides),
        tuple(dilations),
        tuple(padding(how, given, sizes, reach, strides)),
        data.dtype.bitwidth // 8,
        tuple(list(window).index(letter) for letter in spatial + "IO"),
    )


def padding(
    how: str, pads: Sequence[int], sizes: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """(begin, end) of each axis; `how` is the attribute auto_pad, and `extents` are the kernel's, dilated.

    Under SAME a kernel shorter than the stride can lead to a negative total. TensorFlow pads by zero then; onnxruntime
    crops the image on both sides (measured with 1.31.1), so such a node's result depends on its runtime.

        >>> padding("SAME_UPPER", (), [224], [7], [2]), padding("SAME_LOWER", (), [224], [7], [2])
        ([(2, 3)], [(3, 2)])
    """
    if how in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            (-(-size // stride) - 1) * stride + extent - size
            for size, extent, stride in zip(sizes, extents, strides, strict=True)
        ]
        halves = [(total // 2, total - total // 2) for total in totals]
        return halves if how == "SAME_UPPER" else [(end, begin) for begin, end in halves]
    if how == "VALID" or not pads:
        return [(0, 0)] * len(sizes)
    return list(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True))


def _extents(value: ir.Value, letters: str) -> Mapping[str, int]:
    """The known extents by axis name, in the order of the operand's dimensions."""
    shape = value.shape or ()
    return {letter: extent for letter, extent in zip(letters, shape, strict=True) if isinstance(extent, int)}
