"""What running an operator one way costs beside another, in bytes of memory traffic: the unit of conversions.

`python benchmarks/nchwc.py operators` and `python benchmarks/convolutions.py` measure all of it, on one thread:
nanoseconds for a thousand multiplications or elements, and the bytes that a reorder reads and writes in a nanosecond,
between those of a warm cache and a cold one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["POOL", "SCATTERED", "Work", "blocked_convolution", "depthwise", "plain_convolution", "turning"]

BYTES_PER_NANOSECOND = 30

PLAIN, BLOCKED = 15, 12
"""A thousand multiplications in a convolution whose channels meet each other, in nanoseconds."""

PLAIN_DEPTHWISE, BLOCKED_DEPTHWISE = 190, 65
"""The same in a depthwise one."""

WRITTEN, WRITTEN_FROM_PLAIN, WRITTEN_FROM_PLAIN_POINTWISE = 100, 150, 350
"""A thousand elements of the result of a convolution; of a blocked one that reads plain data, with a larger kernel
and with one of 1 x 1."""

PACKED, GATHERED = 80, 200
"""A thousand elements of the matrix that a plain convolution multiplies: of a kernel of 1 x 1, of any larger one."""

GROUP, CHANNEL = 1000, 250
"""One group of a plain convolution, and one channel of a plain depthwise one, in nanoseconds."""

TURNED = 3
"""What a matrix product costs more where its constant operand is the left one, in nanoseconds for a thousand
multiplications: onnxruntime packs only a right one before it runs."""

SCATTERED = 15
"""What a Transpose takes that makes blocks, or takes them apart, beside a reorder of as many bytes: it moves elements
one by one."""

POOL = 2
"""What a plain pool costs more than a blocked one, for each byte of its data."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a convolution does: elements of its result (over all channels), and the multiplications for each of them.

    `outputs` are its channels of results, `groups` its groups.
    """

    elements: int
    depth: int
    outputs: int
    groups: int = 1


def plain_convolution(work: Work, *, is_pointwise: bool) -> int:
    """The cost of a plain convolution whose channels meet each other: a matrix product for each group."""
    matrix = work.elements * work.depth * work.groups // work.outputs
    packing = matrix * (PACKED if is_pointwise else GATHERED)
    multiplying = work.elements * work.depth * PLAIN
    return _traffic(multiplying + packing + work.elements * WRITTEN) + GROUP * work.groups * BYTES_PER_NANOSECOND


def blocked_convolution(work: Work, *, reads_blocks: bool, is_pointwise: bool) -> int:
    """The cost of a blocked convolution whose channels meet each other, zeros of the padding multiplied as well."""
    from_plain = WRITTEN_FROM_PLAIN_POINTWISE if is_pointwise else WRITTEN_FROM_PLAIN
    written = WRITTEN if reads_blocks else from_plain
    return _traffic(work.elements * (work.depth * BLOCKED + written))


def depthwise(work: Work, *, is_blocked: bool) -> int:
    """The cost of a depthwise convolution, slow where it is not blocked."""
    if is_blocked:
        return _traffic(work.elements * work.depth * BLOCKED_DEPTHWISE)
    return _traffic(work.elements * work.depth * PLAIN_DEPTHWISE) + CHANNEL * work.outputs * BYTES_PER_NANOSECOND


def _traffic(picoseconds: int) -> int:
    return picoseconds * BYTES_PER_NANOSECOND // 1000


def turning(count: int) -> int:
    """What `count` multiplications with a constant cost more in a product of the transposes."""
    return count * TURNED * BYTES_PER_NANOSECOND // 1000
