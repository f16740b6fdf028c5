"""The relative costs of an operator's implementations, in bytes of memory traffic: the unit of conversions.

`python benchmarks/nchwc.py operators` measures all of it, on one thread: nanoseconds for a thousand multiplications,
and the bytes that a reorder reads and writes in a nanosecond, between those of a warm cache and a cold one.
"""

from __future__ import annotations

BYTES_PER_NANOSECOND = 30

PLAIN, BLOCKED = 25, 20
PLAIN_DEPTHWISE, BLOCKED_DEPTHWISE = 400, 75

TRANSPOSED = 3
"""The extra cost of a matrix product whose left operand is constant, in nanoseconds for a thousand multiplications:
onnxruntime packs only a right one before the run."""

SCATTERED = 15
"""The cost of a Transpose that leaves no row whole, relative to a reorder of as many bytes: it moves
single elements."""

POOL = 2
"""The extra cost of a plain pool over a blocked one, for each byte of its data."""


def multiplying(count: int, *, blocked: bool) -> int:
    """The cost of `count` multiplications in a convolution that is not depthwise."""
    return count * (BLOCKED if blocked else PLAIN) * BYTES_PER_NANOSECOND // 1000


def multiplying_depthwise(count: int, *, blocked: bool) -> int:
    """The cost of `count` multiplications in a depthwise convolution, which is slow if it is not blocked."""
    return count * (BLOCKED_DEPTHWISE if blocked else PLAIN_DEPTHWISE) * BYTES_PER_NANOSECOND // 1000


def multiplying_transposed(count: int) -> int:
    """The extra cost of `count` multiplications with a constant in a product of the transposes."""
    return count * TRANSPOSED * BYTES_PER_NANOSECOND // 1000
