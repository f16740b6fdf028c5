"""Random operators on heads of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_graphs import Builder, Rejected, Val
from random_operands import floats, masked, proposes


@proposes("Attention")
def attention(b: Builder, operator: str) -> Any:
    q = _heads(b)
    batch, heads, positions, size = q.shape
    fewer = b.draw.choice([each for each in range(1, heads + 1) if heads % each == 0])
    length, width = b.extent(), b.draw.choice([size, b.extent()])
    k, v = (_other(b, (batch, fewer, length, own)) for own in (size, width))
    given: list[Val | None] = [q, k, v]
    if b.chance(0.3):
        shape = masked(b, (batch, heads, positions, length))
        given.append(b.parameter(shape if len(shape) > 1 else (positions, length)))
    causal = 1 if positions <= length and len(given) == 3 and b.chance(0.2) else None
    return b.node(operator, given, is_causal=causal, scale=0.5 if b.chance(0.3) else None)


@proposes("RotaryEmbedding")
def rotary_embedding(b: Builder, operator: str) -> Any:
    x = _heads(b)
    batch, heads, positions, size = x.shape
    if size % 2:
        raise Rejected("pairs of numbers")
    caches: list[Val | None] = [b.parameter((batch, positions, size // 2)) for _ in range(2)]
    return b.node(operator, [x, *caches], interleaved=b.draw.choice([None, 1]), num_heads=b.draw.choice([None, heads]))


def _heads(b: Builder) -> Val:
    """A tensor of rank 4: a value, or one with its second and third axes exchanged, as exporters write them."""
    if b.opset < 23 or b.real is not np.float32:
        raise Rejected("not there")
    x = floats(b, 4, 4)
    return b.node("Transpose", [x], perm=(0, 2, 1, 3)) if b.chance(0.5) else x


def _other(b: Builder, shape: tuple[int, ...]) -> Val:
    """Keys or values of this shape."""
    found = b.pick(lambda v: v.dtype == b.real and v.shape == shape)
    if found is not None and b.chance(0.6):
        return found
    if b.chance(0.5):
        batch, heads, positions, size = shape
        source = (batch, positions, heads, size)
        stored = b.input(source) if len(b.inputs) < 6 else b.parameter(source)
        return b.node("Transpose", [stored], perm=(0, 2, 1, 3))
    return b.input(shape) if len(b.inputs) < 6 else b.parameter(shape)
