"""Constants that a graph computes from stored ones: data movement, any operators of the op table, known shapes.

Some depend on more than 1,024 numbers, which shape inference does not evaluate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper
from random_graphs import Builder, Rejected, Val
from random_operands import element_type
from random_operators import PROPOSALS, adapted, propose

Shape = tuple[int, ...]
I64, I8 = np.int64, np.int8
LARGE = 1024


def computed(b: Builder, shape: Shape, dtype: Any, low: float, high: float) -> Val:
    """A computed constant of this shape, type and range. Raises Rejected."""
    if np.prod(shape, dtype=int) == 0:
        raise Rejected("nothing to compute")
    known = b.pick(lambda v: v.shape == shape and v.dtype == dtype and low <= v.array.min() and v.array.max() <= high)
    if known is not None and b.chance(0.2):
        return known
    if np.dtype(dtype).kind != "f":
        return _moved(b, b.stored(_mixed(b, shape), dtype, low, high), shape)
    kind = b.draw.choice(["moved", "made", "made", "made", "made", "filled", "dequantised"])
    if kind == "moved":
        value = _moved(b, b.stored(_mixed(b, shape), dtype, low, high), shape)
    elif kind == "made":
        value = _within(b, _fitting(b, _made(b), shape), low, high)
    elif kind == "filled":
        value = _filled(b, shape, dtype, low, high)
    else:
        value = _dequantised(b, shape, low, high)
    if value.dtype != dtype:
        raise Rejected("of another type")
    return value


# -- any operators -----------------------------------------------------------------------------------------------------


def _made(b: Builder, operators: Sequence[str] = ()) -> Val:
    """A constant computed from stored numbers by one to three operators, of `operators` or of the whole op table."""
    first = len(b.nodes)
    if b.chance(0.5):
        value = b.stored(b.shape(b.draw.choice([1, 2, 3, 4])))
    else:
        value = b.stored((*b.shape(b.draw.choice([1, 2])), 9, LARGE // 8))
    wanted, known = 1 if operators else b.draw.randint(1, 3), operators or list(PROPOSALS)
    for _ in range(8):
        if len(b.nodes) - first >= wanted:
            break
        try:
            propose(b, b.draw.choice(known))
        except Rejected:
            continue
    made = [node for node in b.nodes[first:] if node.op_type in known]
    results = [b.values[name] for node in made for name in node.output if name]
    fit = [v for v in results if v.constant and v.array.size and v.dtype.kind in "biuf"]
    if not fit:
        return b.node("Identity", [value])
    found = b.draw.choice(fit)
    return found if found.dtype == b.real else b.node("Cast", [found], to=element_type(b.real))


def parameters(b: Builder, operator: str) -> Any:
    """A transposed value, combined several times with constants that this operator computes."""
    x = b.input(b.shape(b.draw.choice([2, 3, 4, 4])))
    perm = b.perm(x.rank)
    y = b.node("Transpose", [x], perm=perm)
    for _ in range(b.draw.randint(2, 4)):
        shape = tuple(e if b.chance(0.8) else 1 for e in y.shape)[b.draw.choice([0, 0, 0, 1]) :]
        constant = _computed_by(b, operator, shape)
        y = b.node(b.draw.choice(["Add", "Mul", "Sub"]), [y, constant])
        if y.rank == 4 and y.shape[1] <= 6 and b.chance(0.4):
            size = [min(2, e) for e in y.shape[2:]]
            y = b.node("Conv", [y, _computed_by(b, operator, (y.shape[1], y.shape[1], *size))], auto_pad="SAME_UPPER")
    return b.node("Transpose", [y], perm=[int(p) for p in np.argsort(perm)])


def _computed_by(b: Builder, operator: str, shape: Shape) -> Val:
    b.is_constant = True
    try:
        return _within(b, _fitting(b, _made(b, [operator]), shape), -1, 1)
    finally:
        b.is_constant = False


def _within(b: Builder, value: Val, low: float, high: float) -> Val:
    """The value, scaled into the range unless it is inside."""
    if low <= value.array.min() and value.array.max() <= high:
        return value
    half, middle = (high - low) / 2.1, (high + low) / 2
    bounded = b.node(b.draw.choice(["Tanh", "Tanh", "Sin"]), [value])
    scaled = b.node("Mul", [bounded, b.constant(half, b.real)])
    return b.node("Add", [scaled, b.constant(middle, b.real)]) if middle else scaled


# -- data movement -----------------------------------------------------------------------------------------------------


def _mixed(b: Builder, shape: Shape) -> Shape:
    """A shape of as many numbers, of a few more, or of very many."""
    kind = b.draw.random()
    if kind < 0.4:
        return tuple(b.draw.sample(shape, len(shape)))
    if kind < 0.7:
        return (*(extent + b.draw.choice([0, 0, 1]) for extent in shape), 1)
    return (max(2, 1 + (LARGE + 80) // max(1, int(np.prod(shape)))), *shape)


def _moved(b: Builder, value: Val, shape: Shape) -> Val:
    """The value after one operator that moves data, fitted to this shape."""
    return _fitting(b, _after_one_move(b, value) if b.chance(0.7) else value, shape)


def _fitting(b: Builder, value: Val, shape: Shape) -> Val:
    """The value, repeated, sliced and reshaped to this shape."""
    count = int(np.prod(shape))
    if value.array.size == count:
        return _reshaped(b, value, shape)
    flat = b.node("Reshape", [value, b.ints([-1])])
    if value.array.size < count:
        flat = b.node("Tile", [flat, b.ints([-(-count // value.array.size)])])
    if flat.shape != (count,):
        first = b.draw.randint(0, flat.shape[0] - count)
        flat = _cut(b, flat, first, first + count)
    return _reshaped(b, flat, shape)


def _after_one_move(b: Builder, value: Val) -> Val:
    kind = b.draw.choice(["transpose", "concat", "gather", "cast", "pad", "expand", "where", "split"])
    rank = value.rank
    if kind == "transpose" and rank > 1:
        return b.node("Transpose", [value], perm=b.perm(rank))
    if kind == "concat" and rank and value.array.size < LARGE:
        return b.node("Concat", [value, value], axis=b.draw.randrange(rank))
    if kind == "gather" and rank:
        axis = b.draw.randrange(rank)
        extent = value.shape[axis]
        return b.node("Gather", [value, b.constant(b.array((extent,), I64, 0, extent - 1))], axis=axis)
    if kind == "cast" and value.dtype == np.float32:
        return b.node("Cast", [b.node("Cast", [value], to=element_type(np.float64))], to=element_type(np.float32))
    if kind == "pad" and rank and b.opset >= 11:
        pads = [b.draw.choice([0, 1]) for _ in range(rank)]
        return b.node("Pad", [value, b.ints([*([0] * rank), *pads])], mode="edge")
    if kind == "expand" and value.array.size < LARGE:
        return b.node("Expand", [value, _extents(b, (2, *value.shape))])
    if kind == "where" and b.opset >= 9:
        return b.node("Where", [b.constant(b.array(value.shape, np.bool_)), value, value])
    return b.node("Identity", [value])


def _cut(b: Builder, value: Val, first: int, end: int) -> Val:
    if b.opset < 10:
        return b.node("Slice", [value], starts=[first], ends=[end], axes=[0])
    return b.node("Slice", [value, b.ints([first]), b.ints([end]), b.ints([0])])


def _reshaped(b: Builder, value: Val, shape: Shape) -> Val:
    if value.shape == shape:
        return value
    if shape and b.chance(0.2):
        value = adapted(b, value, b.draw.randint(1, 4))
    return b.node("Reshape", [value, _extents(b, shape)])


# -- from shapes -------------------------------------------------------------------------------------------------------


def _extents(b: Builder, shape: Shape) -> Val:
    """These extents: stored, the Shape of a tensor, or computed."""
    kind = b.draw.random()
    if kind < 0.2:
        stored = b.pick(lambda v: v.shape == shape) or b.stored(shape)
        return b.node("Shape", [stored])
    if kind < 0.35 and len(shape) > 1:
        return b.node("Concat", [b.ints(shape[:1]), b.ints(shape[1:])], axis=0)
    if kind < 0.45 and shape:
        return b.node("Mul", [b.ints(shape), b.ints([1])])
    return b.ints(shape)


def _filled(b: Builder, shape: Shape, dtype: Any, low: float, high: float) -> Val:
    """A constant of equal numbers, of a Range, or scaled by a Size."""
    count = int(np.prod(shape))
    kind = b.draw.choice(["ConstantOfShape", "ConstantOfShape", "Expand", "Tile", "Range", "Size"])
    number = b.array((1,), dtype, low, high)
    if kind == "ConstantOfShape" and b.opset >= 9:
        value = b.node("ConstantOfShape", [_extents(b, shape)], value=numpy_helper.from_array(number))
        if b.chance(0.5):
            return value
        other = b.stored(tuple(e if b.chance(0.6) else 1 for e in shape), dtype, low, high)
        return _within(b, b.node("Mul", [value, other]), low, high)
    if kind == "Expand":
        return b.node("Expand", [b.stored(tuple(e if b.chance(0.5) else 1 for e in shape), dtype, low, high),
                                 _extents(b, shape)])  # fmt: skip
    if kind == "Tile" and shape:
        kept = tuple(e if b.chance(0.5) else 1 for e in shape)
        repeats = [e // k for e, k in zip(shape, kept, strict=True)]
        return b.node("Tile", [b.stored(kept, dtype, low, high), b.ints(repeats)])
    if kind == "Range" and b.opset >= 11:
        rising = b.node("Range", [b.constant(0.0, dtype), b.constant(float(count), dtype), b.constant(1.0, dtype)])
        return _within(b, _reshaped(b, b.node("Sin", [rising]), shape), low, high)
    stored = b.stored(shape, dtype, low, high)
    amount = b.node("Cast", [b.node("Size", [stored])], to=element_type(dtype))
    return _within(b, b.node("Div", [stored, amount]), low, high)


def _dequantised(b: Builder, shape: Shape, low: float, high: float) -> Val:
    """A dequantized int8 constant, with scale and zero point per channel or per tensor."""
    if b.opset < 10 or b.real != np.float32:
        raise Rejected("none yet")
    most = max(abs(low), abs(high))
    first, last = (int(128 * low / most) + 8, int(127 * high / most) - 8)
    if first > last:
        raise Rejected("too narrow a range")
    axis = b.draw.randrange(len(shape)) if shape and b.opset >= 13 and b.chance(0.6) else None
    many: Shape = () if axis is None else (shape[axis],)
    scale = b.constant(b.array(many, np.float32, 0.9, 1) * np.float32(most / 128))
    zero = [b.constant(b.array(many, I8, 0, 3))] if b.chance(0.6) else []
    value = b.node("DequantizeLinear", [_moved(b, b.stored(_mixed(b, shape), I8, first, last), shape), scale, *zero],
                   axis=axis)  # fmt: skip
    return _within(b, value, low, high)
