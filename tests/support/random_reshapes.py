"""Random view ops: Transpose, Reshape, Squeeze and similar operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_graphs import Builder
from random_operands import adapted, floats, insert_units, proposes, unsqueezed

B = np.bool_


@proposes("Transpose")
def transpose(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.constant == b.is_constant and v.array.size > 0) if b.chance(0.2) else None
    x = x if x is not None else floats(b, 1 if b.chance(0.9) else 0)
    perm = None if b.chance(0.08) else b.perm(x.rank)
    return b.node("Transpose", [x], perm=perm if x.rank or perm is None else None)


@proposes("Identity")
def identity(b: Builder, operator: str) -> Any:
    return b.node("Identity", [floats(b)])


@proposes("Dropout")
def dropout(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    results = b.draw.choice([1, 1, 2]) if b.opset >= 10 else 1
    given = [x]
    if b.opset >= 12 and b.chance(0.4):
        given += [b.constant(0.4, b.real), b.constant(False, B)][: b.draw.choice([1, 2])]
    return b.node("Dropout", given, results=results)


@proposes("Squeeze")
def squeeze(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype == b.real and v.constant == b.is_constant and 1 in v.shape and v.rank > 1)
    if x is None:
        x = unsqueezed(b, floats(b, 1, 4), [1])
    units = [a for a, e in enumerate(x.shape) if e == 1]
    axes = b.draw.sample(units, b.draw.randint(1, len(units)))
    if b.chance(0.2):
        return b.node("Squeeze", [x])
    if b.opset >= 11:
        axes = [a - x.rank if b.chance(0.3) else a for a in axes]
    # onnx infers a wrong rank unless the attribute is sorted.
    return (
        b.node("Squeeze", [x], axes=sorted(a % x.rank for a in axes))
        if b.opset < 13
        else b.node("Squeeze", [x, b.ints(axes)])
    )


@proposes("Unsqueeze")
def unsqueeze(b: Builder, operator: str) -> Any:
    x = floats(b, 0, 4)
    total = x.rank + b.draw.choice([1, 1, 2] if x.rank < 4 else [1])
    axes = b.draw.sample(range(total), total - x.rank)
    if b.opset >= 11:
        axes = [a - total if b.chance(0.3) else a for a in axes]
    return unsqueezed(b, x, axes)


@proposes("Flatten")
def flatten(b: Builder, operator: str) -> Any:
    x = floats(b, 0 if b.chance(0.1) else 1)
    axis = b.draw.randint(0, x.rank) if b.chance(0.8) else None
    if axis is not None and b.opset >= 11 and b.chance(0.3):
        axis -= x.rank
    return b.node("Flatten", [x], axis=axis)


@proposes("Reshape")
def reshape(b: Builder, operator: str) -> Any:
    x = floats(b)
    if b.chance(0.3):
        return adapted(b, x, b.draw.randint(1, 5))
    kind = b.draw.random()
    shape = list(x.shape)
    if kind < 0.25:
        shape = insert_units(b, tuple(e for e in shape if e > 1), b.draw.randint(len([e for e in shape if e > 1]), 5))
    elif kind < 0.5 and shape:
        rest = list(shape)
        position = b.draw.randrange(len(rest))
        factors = [f for f in range(2, rest[position]) if rest[position] % f == 0]
        if factors:
            factor = b.draw.choice(factors)
            rest[position : position + 1] = [factor, rest[position] // factor]
        shape = rest
    elif kind < 0.75 and len(shape) > 1:
        position = b.draw.randrange(len(shape) - 1)
        shape[position : position + 2] = [shape[position] * shape[position + 1]]
    else:
        shape = _refactored(b, x.array.size)
    given = list(shape)
    for position, extent in enumerate(given):
        if position < x.rank and extent == x.shape[position] and b.chance(0.2):
            given[position] = 0
    if given and b.chance(0.4):
        given[b.draw.randrange(len(given))] = -1
    return b.node("Reshape", [x, b.ints(given)])


def _refactored(b: Builder, size: int) -> list[int]:
    shape: list[int] = []
    while size > 1 and len(shape) < 4:
        factor = b.draw.choice([f for f in range(1, size + 1) if size % f == 0])
        shape.append(factor)
        size //= factor
    return [*shape, size]
