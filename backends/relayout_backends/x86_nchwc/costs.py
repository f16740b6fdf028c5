"""What running an operator one way costs beside another, in bytes of memory traffic: the unit of conversions.

`python benchmarks/nchwc.py operators` measures all of it, on one thread: nanoseconds for a thousand multiplications,
and the bytes that a reorder reads and writes in a nanosecond, between those of a warm cache and a cold one.
"""

from __future__ import annotations

__all__ = ["POOL", "SCATTERED", "multiplying", "multiplying_depthwise", "turning"]

BYTES_PER_NANOSECOND = 30

PLAIN, BLOCKED = 25, 20
PLAIN_DEPTHWISE, BLOCKED_DEPTHWISE = 400, 75

TURNED = 3
"""What a matrix product costs more where its constant operand is the left one, in nanoseconds for a thousand
multiplications: onnxruntime packs only a right one before it runs."""

SCATTERED = 15
"""What a Transpose takes that makes blocks, or takes them apart, beside a reorder of as many bytes: it moves elements
one by one."""

POOL = 2
"""What a plain pool costs more than a blocked one, for each byte of its data."""


def multiplying(count: int, *, blocked: bool) -> int:
    """The cost of `count` multiplications in a convolution whose channels meet each other."""
    return count * (BLOCKED if blocked else PLAIN) * BYTES_PER_NANOSECOND // 1000


def multiplying_depthwise(count: int, *, blocked: bool) -> int:
    """The cost of `count` multiplications in a depthwise convolution, slow where it is not blocked."""
    return count * (BLOCKED_DEPTHWISE if blocked else PLAIN_DEPTHWISE) * BYTES_PER_NANOSECOND // 1000


def turning(count: int) -> int:
    """What `count` multiplications with a constant cost more in a product of the transposes."""
    return count * TURNED * BYTES_PER_NANOSECOND // 1000
