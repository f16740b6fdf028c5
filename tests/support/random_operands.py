"""Operands of random operators: values of the graph that fit, reshaped ones, or new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from random_graphs import Builder, Rejected, Val

Proposal = Callable[[Builder, str], Any]
PROPOSALS: dict[str, Proposal] = {}
I64, I32, I8, B = np.int64, np.int32, np.int8, np.bool_


def proposes(*operators: str) -> Callable[[Proposal], Proposal]:
    def enter(proposal: Proposal) -> Proposal:
        PROPOSALS.update(dict.fromkeys(operators, proposal))
        return proposal

    return enter


def propose(b: Builder, operator: str) -> None:
    """Add the operator with random operands. Raises Rejected."""
    PROPOSALS[operator](b, operator)


# -- operands --------------------------------------------------------------------------------------------------------


def _is(value: Val, dtype: Any, low: int, high: int) -> bool:
    return value.dtype == dtype and low <= value.rank <= high and value.array.size > 0


def floats(b: Builder, low: int = 0, high: int = 5) -> Val:
    """A float value with a rank in this range: a value of the graph, a reshaped one, or a new input."""
    found = b.pick(lambda v: _is(v, b.real, low, high) and v.constant == b.is_constant)
    if found is not None and b.chance(0.9):
        return found
    other = b.pick(lambda v: v.dtype == b.real and v.constant == b.is_constant and v.array.size > 1)
    rank = b.draw.randint(max(low, 1), max(low, high, 1))
    if rank <= 2 and high >= 3:
        rank = b.draw.randint(max(low, 2), high)
    if other is not None and (b.chance(0.5) or len(b.inputs) >= 5):
        return adapted(b, other, rank)
    return b.input(b.shape(rank), b.real)


def adapted(b: Builder, value: Val, rank: int) -> Val:
    """The value reshaped to another rank: unit axes inserted, axes fused or split."""
    if value.rank == rank:
        return value
    if value.rank < rank and b.chance(0.3):
        return b.node("Reshape", [value, b.ints(insert_units(b, value.shape, rank))])
    shape = list(value.shape)
    while len(shape) > rank:
        position = b.draw.randrange(len(shape) - 1) if len(shape) > 1 else 0
        shape[position : position + 2] = [int(np.prod(shape[position : position + 2]))]
    while len(shape) < rank:
        position = b.draw.randrange(len(shape)) if shape else 0
        extent = shape[position] if shape else 1
        factor = b.draw.choice([f for f in range(1, extent + 1) if extent % f == 0])
        shape[position : position + 1] = [factor, extent // factor]
    return b.node("Reshape", [value, b.ints(shape)])


def unsqueezed(b: Builder, value: Val, axes: list[int]) -> Val:
    return b.node("Unsqueeze", [value], axes=axes) if b.opset < 13 else b.node("Unsqueeze", [value, b.ints(axes)])


def insert_units(b: Builder, shape: tuple[int, ...], rank: int) -> list[int]:
    result = list(shape)
    while len(result) < rank:
        result.insert(b.draw.randint(0, len(result)), 1)
    return result


def integers(b: Builder, low: int = 0, high: int = 4, dtype: Any = I32) -> Val:
    found = b.pick(
        lambda v: _is(v, dtype, low, high) and v.constant == b.is_constant
        and v.array.max() <= 6 and v.array.min() >= 0
    )  # fmt: skip
    if found is not None and b.chance(0.8):
        return found
    if b.chance(0.4) and len(b.inputs) < 6:
        return b.input(b.shape(b.draw.randint(max(low, 1), high)), dtype, 0, 6)
    x = floats(b, low, high)
    return b.node("Cast", [b.node("Abs", [b.node("Mul", [x, b.constant(1.7, b.real)])])], to=element_type(dtype))


def booleans(b: Builder) -> Val:
    found = b.pick(lambda v: _is(v, B, 0, 4) and v.constant == b.is_constant)
    if found is not None and b.chance(0.7):
        return found
    if b.chance(0.3) and len(b.inputs) < 6:
        return b.input(b.shape(b.draw.randint(1, 4)), B)
    x = floats(b, 0, 4)
    return b.node(b.draw.choice(["Greater", "Less"]), [x, b.constant(0.1, b.real)])


def element_type(dtype: Any) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def positive(b: Builder, x: Val) -> Val:
    """The value scaled into [0.5, 2.5]."""
    if x.array.size and x.array.min() >= 0.4 and (x.noisy.min() >= 0.4):
        return x
    return b.node("Add", [b.node("Mul", [b.node("Sigmoid", [x]), b.constant(2.0, b.real)]), b.constant(0.5, b.real)])


def unit(b: Builder, x: Val) -> Val:
    if x.array.size and np.abs(x.array).max() <= 0.95:
        return x
    return b.node("Mul", [b.node("Tanh", [x]), b.constant(0.9, b.real)])


def masked(b: Builder, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one: some axes are 1, some leading axes are omitted."""
    keep = b.draw.choice((0.2, 0.5, 0.9))
    low = tuple(e if b.chance(keep) else 1 for e in shape)
    return low[b.draw.randint(0, len(low)) if b.chance(0.5) else 0 :]


def fits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(one, other))) <= 4000
    except ValueError:
        return False


def partner(b: Builder, x: Val, *, low: float = -2.0, high: float = 2.0, within: bool = False) -> Val:
    """A second operand that broadcasts with `x`; `within`: the result has the shape of `x`."""
    dtype = x.dtype
    kind = b.draw.random()
    if kind < 0.45:
        found = b.pick(
            lambda v: v.dtype == dtype and v.name != x.name and v.array.size > 0 and fits(v.shape, x.shape)
            and (not within or np.broadcast_shapes(v.shape, x.shape) == x.shape)
            and v.array.min() >= low - 1 and v.array.max() <= high + 1
        )  # fmt: skip
        if found is not None:
            return found
    if kind < 0.6:
        # A smaller value of the graph, reshaped to broadcast, as in squeeze-and-excite and FiLM.
        found = b.pick(lambda v: v.dtype == dtype and v.rank <= 2 and v.array.size > 1 and v.array.size in x.shape)
        if found is not None:
            position = b.draw.choice([a for a, e in enumerate(x.shape) if e == found.array.size])
            shape = [1] * x.rank
            shape[position] = found.array.size
            lead = b.draw.randint(0, position)
            return b.node("Reshape", [found, b.ints(shape[lead:])])
    shape = masked(b, x.shape)
    if not within and b.chance(0.1) and x.rank < 5:
        shape = (b.extent(), *([1] * (x.rank - len(shape))), *shape)
    if b.chance(0.35) and len(b.inputs) < 6:
        return b.input(shape, dtype, low, high)
    return b.parameter(shape, dtype.type, low, high)


def image(b: Builder, low: int = 3, high: int = 5) -> Val:
    """A channels-first operand with a rank in this range, often behind a Transpose from channels last."""
    for _ in range(20):
        x = floats(b, low, high)
        if x.array.size <= 1500:
            break
    else:
        raise Rejected("no such image")
    if b.chance(0.4):
        x = b.node("Transpose", [x], perm=(0, x.rank - 1, *range(1, x.rank - 1)))
    return x


def back(b: Builder, y: Val) -> Val:
    """The result, sometimes transposed to channels last."""
    if y.rank > 2 and b.chance(0.4):
        return b.node("Transpose", [y], perm=(0, *range(2, y.rank), 1))
    return y


def kernel(b: Builder, shape: tuple[int, ...]) -> Val:
    """A weight: stored, transposed or dequantized from a stored one, or (rarely) a graph input."""
    kind = b.draw.random()
    if kind < 0.5:
        return b.parameter(shape, b.real, -1, 1)
    if kind < 0.65:
        perm = b.perm(len(shape))
        source_shape = [0] * len(shape)
        for position, axis in enumerate(perm):
            source_shape[axis] = shape[position]
        stored = b.parameter(source_shape, b.real, -1, 1)
        return b.node("Transpose", [stored], perm=perm)
    if kind < 0.85 and b.opset >= 10:
        quantised = b.parameter(shape, I8, -60, 60)
        if b.opset >= 13 and b.chance(0.6):
            scale, zero = b.array((shape[0],), b.real, 0.01, 0.02), b.array((shape[0],), I8, 0, 3)
            return b.node("DequantizeLinear", [quantised, b.constant(scale), b.constant(zero)], axis=0)
        return b.node("DequantizeLinear", [quantised, b.constant(0.015, b.real), b.constant(1, I8)])
    if kind < 0.92:
        flat = b.parameter((int(np.prod(shape)),), b.real, -1, 1)
        return b.node("Reshape", [flat, b.ints(shape)])
    return b.input(shape, b.real, -1, 1, fixed=True) if len(b.inputs) < 6 else b.parameter(shape, b.real, -1, 1)


def axis_of(b: Builder, rank: int) -> int:
    axis = b.draw.randrange(rank)
    return axis - rank if b.opset >= 11 and b.chance(0.4) else axis


def indices(b: Builder, shape: tuple[int, ...], top: int) -> Val:
    array = b.array(shape, I64, 0, top)
    if b.chance(0.5):
        return b.constant(array)
    if b.chance(0.5) or len(b.inputs) > 5:
        return b.node("Identity", [b.constant(array)]) if b.chance(0.3) else b.constant(array)
    return b.input(shape, I64, 0, top)
