"""A convolution over blocks of its image, as an implementation: its layout, its cost, and its rewrite.

The image is in `NHWh[tile:2]w[tile:2]C`, which is [N, H/2, W/2, 4 C] in four dimensions. The kernel is padded and
converted at compile time, and the convolution is `relayout::Conv` in NHWC with an HWIO kernel. One and three dimensions
are treated in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relayout.backend import Implementation, axis_count
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import spatial_letters
from relayout_backends.tpu.space_to_depth import BlockedAxis, blocked_axis, blocks_of, kernel_steps
from relayout_backends.tpu.strided_convolution import StridedConvolution

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend import Writing

LANES = 128
"""The channels that a matrix unit contracts, and those that it produces, at a time; missing ones are zeros."""
SLICE_READS_INPUTS_SINCE = 10


def over_blocks(convolution: StridedConvolution) -> list[BlockedConvolution]:
    """The convolution over blocks of every size that its strides allow, the smallest first."""
    made = (over(convolution, block) for block in blocks_of(convolution.strides))
    return [each for each in made if each is not None]


def over(convolution: StridedConvolution, block: Sequence[int] | None = None) -> BlockedConvolution | None:
    """The convolution over blocks of these extents, one for each spatial axis; None where that is not exact.

    Without `block` over blocks of one position, which is the convolution itself.
    """
    given = convolution
    extents = block or [1] * len(given.sizes)
    axes = [
        blocked_axis(extent, size, kernel, stride, begin, end, dilation)
        for extent, size, kernel, stride, (begin, end), dilation in zip(
            extents, given.sizes, given.kernel, given.strides, given.pads, given.dilations, strict=True
        )
    ]
    exact = tuple(axis for axis in axes if axis is not None)
    return BlockedConvolution(convolution, exact) if len(exact) == len(axes) else None


@dataclass(frozen=True, slots=True)
class BlockedConvolution:
    """`source` over blocks of its image."""

    source: StridedConvolution
    axes: tuple[BlockedAxis, ...]

    @property
    def depth(self) -> int:
        """The number of channels of the image in blocks."""
        return self.source.channels * prod(axis.block for axis in self.axes)

    @property
    def layout(self) -> Layout:
        """The layout of the image: N, blocks, positions within a block, C; `NHWh[tile:2]w[tile:2]C` for blocks of 2 x
        2."""
        tiles = zip(self._spatial.lower(), self.axes, strict=True)
        places = "".join(f"{letter}[tile:{axis.block}]" for letter, axis in tiles if axis.block > 1)
        return Layout.parse(f"N{self._spatial}{places}C")

    @property
    def bytes_streamed(self) -> int:
        """The cost of running it: the bytes that stream through the matrix unit, each as one of memory traffic.

        For every position of the result, every one of the kernel, and every 128 channels of the result: the channels of
        the image, padded to a multiple of 128. A result that is cropped is read and written once more.
        """
        taps, results = prod(axis.kernel for axis in self.axes), prod(axis.given for axis in self.axes)
        lanes = -(-self.depth // LANES) * LANES * -(-self.source.outputs // LANES)
        cropped = 2 * self.source.outputs if self._is_cropped else 0
        return self.source.element_size * self.source.batch * results * (taps * lanes + cropped)

    def implementation(self, plain: Implementation, cost: int) -> Implementation:
        """This implementation of the node that `plain` runs as it is: the same result from an image in blocks."""
        others = tuple(Layout.any(axis_count(layout)) for layout in plain.inputs[1:])
        return Implementation((self.layout, *others), plain.results, cost, self._write, pads=True)

    @property
    def _spatial(self) -> str:
        return spatial_letters(len(self.axes) + 2) or ""

    @property
    def _is_cropped(self) -> bool:
        return any(axis.given != axis.result for axis in self.axes)

    def _write(self, writing: Writing) -> None:
        batch, *blocks = writing.shape_of(0)[: len(self.axes) + 1]
        steps = kernel_steps(self.axes, self.source.kernel_perm, self.source.channels, self.source.outputs)
        inputs = [writing.read(0, (batch, *blocks, self.depth)), writing.relaid_constant(1, steps)]
        inputs += [writing.read(n) for n in range(2, len(writing.node.inputs)) if writing.node.inputs[n] is not None]
        attributes = {
            "data_layout": f"N{self._spatial}C",
            "kernel_layout": f"{self._spatial}IO",
            "dilations": [axis.dilation for axis in self.axes],
            "group": 1,
            "kernel_shape": [axis.kernel for axis in self.axes],
            "pads": [axis.begin for axis in self.axes] + [axis.end for axis in self.axes],
            "strides": [axis.stride for axis in self.axes],
        }
        shape = (batch, *(axis.given for axis in self.axes), self.source.outputs)
        result = writing.emit("Conv", inputs, attributes, shape=shape, domain="relayout")
        writing.set_result(0, self._cropped(writing, result, batch) if self._is_cropped else result)

    def _cropped(self, writing: Writing, value: ir.Value, batch: int | str | None) -> ir.Value:
        """The results of the source's convolution, without those that the last blocks add."""
        results = [axis.result for axis in self.axes]
        bounds = {"starts": [0] * len(results), "ends": results, "axes": list(range(1, len(results) + 1))}
        shape = (batch, *results, self.source.outputs)
        if writing.opset < SLICE_READS_INPUTS_SINCE:
            return writing.emit("Slice", [value], bounds, shape=shape)
        inputs = [writing.constant(name, np.array(numbers, np.int64)) for name, numbers in bounds.items()]
        return writing.emit("Slice", [value, *inputs], shape=shape)
