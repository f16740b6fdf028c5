"""A strided convolution as one over blocks: the positions within a block of the image become channels.

With blocks of b along an axis, b a divisor of the stride s, result i reads `image[i * s + tap - begin]` for each tap of
the kernel. With as many zeros before the kernel as make `begin` a multiple of b, `front = -begin % b`, that is position
`(front + tap) % b` of block `i * (s / b) + (front + tap) // b - (begin + front) / b`: a convolution over blocks, whose
stride is s / b and whose channels are the positions times the old channels.

After "Automatic Space to Depth Transform in MLIR Bridge" (TensorFlow), which puts a zero before an odd kernel and
requires that b divide the image. Here the image may have any size (its last block is padded with zeros) and any
padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import gcd, lcm, prod
from typing import Any

LARGEST_BLOCK = 64
"""Patches of vision transformers are 32 wide and less."""


@dataclass(frozen=True, slots=True)
class BlockedAxis:
    """One spatial axis of the convolution over blocks of `block`: in blocks, but `front` and `back` in elements.

    `size` and `kernel` count blocks of the image and of the kernel, `front` and `back` are the zeros around the kernel,
    `stride`, `begin` and `end` are those of the new convolution. Its extent is `given`, of which the first `result`
    elements are the old one's: there is one more if the old convolution never reads the last block of the image.
    """

    block: int
    size: int
    kernel: int
    front: int
    back: int
    stride: int
    begin: int
    end: int
    dilation: int
    result: int
    given: int


def blocked_axis(
    block: int, size: int, kernel: int, stride: int, begin: int, end: int, dilation: int
) -> BlockedAxis | None:
    """The axis over blocks; None where it is not exact: the block does not divide the stride, the kernel is dilated
    within blocks, the padding is negative, or the convolution has no results.

        >>> axis = blocked_axis(2, size=224, kernel=7, stride=2, begin=3, end=3, dilation=1)
        >>> axis.size, axis.kernel, axis.front, axis.back, axis.stride, axis.begin, axis.end
        (112, 4, 1, 0, 1, 2, 1)
    """
    result = (size + begin + end - (kernel - 1) * dilation - 1) // stride + 1
    if stride % block or min(begin, end) < 0 or min(size, kernel, result) < 1:
        return None
    if block == 1:
        return BlockedAxis(1, size, kernel, 0, 0, stride, begin, end, dilation, result, result)
    if dilation != 1:
        return None
    front = -begin % block
    blocks, taps = -(-size // block), -(-(front + kernel) // block)
    step, leading = stride // block, (begin + front) // block
    # The elements beyond the image that the last result reads; negative where it does not read all of it.
    trailing = max(0, (result - 1) * step + taps - blocks - leading)
    given = (blocks + leading + trailing - taps) // step + 1
    back = taps * block - front - kernel
    return BlockedAxis(block, blocks, taps, front, back, step, leading, trailing, 1, result, given)


def blocks_of(strides: Sequence[int]) -> list[tuple[int, ...]]:
    """The block sizes to try, an extent for each spatial axis, the smallest first: common divisors of the strides.

    >>> blocks_of([2, 2]), blocks_of([2, 4]), blocks_of([1, 1])
    ([(2, 2)], [(2, 2), (2, 4)], [])
    """
    least = lcm(*strides)
    factors = [factor for factor in range(2, min(least, LARGEST_BLOCK) + 1) if least % factor == 0]
    return list(dict.fromkeys(tuple(gcd(stride, factor) for stride in strides) for factor in factors))


def kernel_steps(axes: Sequence[BlockedAxis], perm: Sequence[int], channels: int, outputs: int) -> list[dict[str, Any]]:
    """The steps (see `relayout.layout.relaid_constant`) from a kernel to that of the convolution over blocks.

    `perm` makes HWIO of it: spatial axes, I, O. The result is HWIO too, its channels the positions of a block, row by
    row, times I. With blocks of 2: [7, 7, 3, 64] is padded to [8, 8, 3, 64], split to [4, 2, 4, 2, 3, 64], transposed
    to [4, 4, 2, 2, 3, 64], and read as [4, 4, 12, 64].
    """
    rank = len(axes)
    split = chain.from_iterable((axis.kernel, axis.block) for axis in axes)
    gathered = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), 2 * rank, 2 * rank + 1)
    fronts, backs = [axis.front for axis in axes], [axis.back for axis in axes]
    depth = channels * prod(axis.block for axis in axes)
    return [
        {"op": "transpose", "perm": list(perm)},
        {"op": "pad", "pads": [*fronts, 0, 0, *backs, 0, 0]},
        {"op": "reshape", "shape": [*split, channels, outputs]},
        {"op": "transpose", "perm": list(gathered)},
        {"op": "reshape", "shape": [*(axis.kernel for axis in axes), depth, outputs]},
    ]
