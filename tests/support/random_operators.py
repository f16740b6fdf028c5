"""One way or more to add each operator of the op table to a random graph, by name in `PROPOSALS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from random_graphs import Builder, Rejected, Val

__all__ = ["PROPOSALS", "adapted", "floats", "integers", "partner", "propose"]

Proposal = Callable[[Builder, str], Any]
PROPOSALS: dict[str, Proposal] = {}
F, D, F16, I64, I32, I8, U8, B = (
    np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_,
)  # fmt: skip


def proposes(*operators: str) -> Callable[[Proposal], Proposal]:
    def enter(proposal: Proposal) -> Proposal:
        PROPOSALS.update(dict.fromkeys(operators, proposal))
        return proposal

    return enter


def propose(b: Builder, operator: str) -> None:
    """Add the operator somewhere. Raises Rejected."""
    PROPOSALS[operator](b, operator)


# -- operands --------------------------------------------------------------------------------------------------------


def _is(value: Val, dtype: Any, rank: int | tuple[int, int]) -> bool:
    low, high = (rank, rank) if isinstance(rank, int) else rank
    return value.dtype == dtype and low <= value.rank <= high and value.array.size > 0


def floats(b: Builder, low: int = 0, high: int = 5, dtype: Any = F) -> Val:
    """A float value of a rank in this range: one of the graph, another one reshaped, or a new input."""
    found = b.pick(lambda v: _is(v, dtype, (low, high)) and not v.constant)
    if found is not None and b.chance(0.9):
        return found
    other = b.pick(lambda v: v.dtype == dtype and not v.constant and v.array.size > 1)
    rank = b.draw.randint(max(low, 1), max(low, high, 1))
    if rank <= 2 and high >= 3:
        rank = b.draw.randint(max(low, 2), high)
    if other is not None and (b.chance(0.5) or len(b.inputs) >= 5):
        return adapted(b, other, rank)
    return b.input(b.shape(rank), dtype)


def adapted(b: Builder, value: Val, rank: int) -> Val:
    """The value with another rank: unit axes come, or axes merge or split."""
    if value.rank == rank:
        return value
    if value.rank < rank and b.chance(0.3):
        return b.node("Reshape", [value, b.ints(_insert_units(b, value.shape, rank))])
    shape = list(value.shape)
    while len(shape) > rank:
        place = b.draw.randrange(len(shape) - 1) if len(shape) > 1 else 0
        shape[place : place + 2] = [int(np.prod(shape[place : place + 2]))]
    while len(shape) < rank:
        place = b.draw.randrange(len(shape)) if shape else 0
        extent = shape[place] if shape else 1
        factor = b.draw.choice([f for f in range(1, extent + 1) if extent % f == 0])
        shape[place : place + 1] = [factor, extent // factor]
    return b.node("Reshape", [value, b.ints(shape)])


def _insert_units(b: Builder, shape: tuple[int, ...], rank: int) -> list[int]:
    result = list(shape)
    while len(result) < rank:
        result.insert(b.draw.randint(0, len(result)), 1)
    return result


def integers(b: Builder, low: int = 0, high: int = 4, dtype: Any = I32, top: int = 6) -> Val:
    found = b.pick(
        lambda v: _is(v, dtype, (low, high)) and not v.constant and v.array.max() <= top and v.array.min() >= 0
    )
    if found is not None and b.chance(0.8):
        return found
    if b.chance(0.4) and len(b.inputs) < 6:
        return b.input(b.shape(b.draw.randint(max(low, 1), high)), dtype, 0, top)
    x = floats(b, low, high)
    return b.node("Cast", [b.node("Abs", [b.node("Mul", [x, b.constant(1.7, F)])])], to=_onnx_type(dtype))


def booleans(b: Builder, low: int = 0, high: int = 4) -> Val:
    found = b.pick(lambda v: _is(v, B, (low, high)) and not v.constant)
    if found is not None and b.chance(0.7):
        return found
    if b.chance(0.3) and len(b.inputs) < 6:
        return b.input(b.shape(b.draw.randint(max(low, 1), high)), B)
    x = floats(b, low, high)
    return b.node(b.draw.choice(["Greater", "Less"]), [x, b.constant(0.1, F)])


def _onnx_type(dtype: Any) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def positive(b: Builder, x: Val) -> Val:
    """The value brought into [0.5, 2.5]."""
    if x.array.size and x.array.min() >= 0.4 and (x.noisy.min() >= 0.4):
        return x
    return b.node("Add", [b.node("Mul", [b.node("Sigmoid", [x]), b.constant(2.0, F)]), b.constant(0.5, F)])


def unit(b: Builder, x: Val) -> Val:
    if x.array.size and np.abs(x.array).max() <= 0.95:
        return x
    return b.node("Mul", [b.node("Tanh", [x]), b.constant(0.9, F)])


def _masked(b: Builder, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one: some axes 1, some leading ones left out."""
    keep = b.draw.choice((0.2, 0.5, 0.9))
    low = tuple(e if b.chance(keep) else 1 for e in shape)
    return low[b.draw.randint(0, len(low)) if b.chance(0.5) else 0 :]


def _fits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(one, other))) <= 4000
    except ValueError:
        return False


def partner(b: Builder, x: Val, *, low: float = -2.0, high: float = 2.0, within: bool = False) -> Val:
    """A second operand that broadcasts with `x`; `within`: to the very shape of x."""
    dtype = x.dtype
    kind = b.draw.random()
    if kind < 0.45:
        found = b.pick(
            lambda v: v.dtype == dtype and v.name != x.name and v.array.size > 0 and _fits(v.shape, x.shape)
            and (not within or np.broadcast_shapes(v.shape, x.shape) == x.shape)
            and v.array.min() >= low - 1 and v.array.max() <= high + 1
        )  # fmt: skip
        if found is not None:
            return found
    if kind < 0.6:
        # A smaller thing from the graph, brought to a shape that broadcasts: squeeze-and-excite, FiLM.
        found = b.pick(lambda v: v.dtype == dtype and v.rank <= 2 and v.array.size > 1 and v.array.size in x.shape)
        if found is not None:
            place = b.draw.choice([a for a, e in enumerate(x.shape) if e == found.array.size])
            shape = [1] * x.rank
            shape[place] = found.array.size
            lead = b.draw.randint(0, place)
            return b.node("Reshape", [found, b.ints(shape[lead:])])
    shape = _masked(b, x.shape)
    if not within and b.chance(0.1) and x.rank < 5:
        shape = (b.extent(), *([1] * (x.rank - len(shape))), *shape)
    if b.chance(0.35) and len(b.inputs) < 6:
        return b.input(shape, dtype, low, high)
    return b.constant(b.array(shape, dtype.type, low, high))


# -- element by element ----------------------------------------------------------------------------------------------

_ANY = (
    "Abs Asinh Atan Ceil Celu Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish IsNaN IsInf LeakyRelu Mish Neg "
    "Relu Round Selu Shrink Sigmoid Sign Sin Sinh Cosh Softplus Softsign Swish Tan Tanh ThresholdedRelu"
)


@proposes(*_ANY.split())
def unary(b: Builder, operator: str) -> Any:
    x = floats(b)
    attributes: dict[str, Any] = {}
    if operator in ("Elu", "LeakyRelu", "ThresholdedRelu", "Celu", "HardSigmoid", "Swish") and b.chance(0.5):
        attributes["alpha"] = b.draw.choice([0.3, 0.7])
    if operator == "Gelu" and b.chance(0.5):
        attributes["approximate"] = "tanh"
    return b.node(operator, [x], **attributes)


@proposes("Acos", "Asin", "Atanh")
def of_units(b: Builder, operator: str) -> Any:
    return b.node(operator, [unit(b, floats(b))])


@proposes("Log", "Sqrt", "Reciprocal", "Acosh")
def of_positives(b: Builder, operator: str) -> Any:
    x = positive(b, floats(b))
    return b.node(operator, [b.node("Add", [x, b.constant(0.75, F)]) if operator == "Acosh" else x])


@proposes("Cast")
def cast(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype in (F, I32, I64, B, F16, D) and not v.constant) or floats(b)
    return b.node("Cast", [x], to=_onnx_type(b.draw.choice([F, F, F16, D, I32, I64, B])))


@proposes("CastLike")
def cast_like(b: Builder, operator: str) -> Any:
    like = b.constant(b.array((2,), b.draw.choice([F16, D, I32])))
    return b.node("CastLike", [floats(b), like])


@proposes("Clip")
def clip(b: Builder, operator: str) -> Any:
    x = floats(b)
    if b.opset < 11:
        return b.node("Clip", [x], min=-0.5, max=b.draw.choice([0.6, None]))
    bounds = [b.draw.choice([None, b.constant(-0.5, F)]), b.constant(0.6, F)]
    return b.node("Clip", [x, *bounds][: b.draw.choice([2, 3]) if bounds[0] else 3])


@proposes("Not")
def negation(b: Builder, operator: str) -> Any:
    return b.node("Not", [booleans(b)])


@proposes("BitwiseNot")
def bitwise_not(b: Builder, operator: str) -> Any:
    return b.node("BitwiseNot", [integers(b)])


def _both(b: Builder, x: Val, y: Val) -> list[Val]:
    return [x, y] if b.chance(0.6) else [y, x]


@proposes("Add", "Sub", "Mul", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
def binary(b: Builder, operator: str) -> Any:
    x = integers(b) if operator == "Equal" or b.chance(0.1) else floats(b)
    y = partner(b, x) if x.dtype == F else partner(b, x, low=0, high=6)
    return b.node(operator, _both(b, x, y))


@proposes("Div")
def division(b: Builder, operator: str) -> Any:
    x = floats(b)
    y = partner(b, x, low=0.5, high=2)
    return b.node("Div", [x, positive(b, y)] if b.chance(0.6) else [y, positive(b, x)])


@proposes("Pow")
def power(b: Builder, operator: str) -> Any:
    x = positive(b, floats(b))
    return b.node("Pow", [x, partner(b, x, low=0.5, high=2)])


@proposes("Mod")
def modulo(b: Builder, operator: str) -> Any:
    if b.chance(0.5):
        x = integers(b)
        return b.node("Mod", [x, b.constant(b.array(_masked(b, x.shape), I32, 1, 4))])
    x = floats(b)
    return b.node("Mod", [x, b.constant(b.array(_masked(b, x.shape), F, 0.6, 2))], fmod=1)


@proposes("PRelu")
def prelu(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    return b.node("PRelu", [x, partner(b, x, within=True)])


@proposes("Max", "Min", "Sum", "Mean")
def variadic(b: Builder, operator: str) -> Any:
    x = floats(b)
    rest = [partner(b, x) for _ in range(b.draw.randint(0, 2))]
    given = [x, *rest]
    b.draw.shuffle(given)
    return b.node(operator, given)


@proposes("Where")
def where(b: Builder, operator: str) -> Any:
    x = floats(b)
    condition = b.pick(lambda v: v.dtype == B and _fits(v.shape, x.shape))
    if condition is None or b.chance(0.4):
        condition = b.constant(b.array(_masked(b, x.shape), B)) if b.chance(0.3) else b.input(_masked(b, x.shape), B)
    return b.node("Where", [condition, *_both(b, x, partner(b, x))])


@proposes("And", "Or", "Xor")
def logical(b: Builder, operator: str) -> Any:
    x = booleans(b)
    return b.node(operator, _both(b, x, partner(b, x, low=-1, high=2)))


@proposes("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(b: Builder, operator: str) -> Any:
    x = integers(b)
    return b.node(operator, _both(b, x, partner(b, x, low=0, high=6)))


@proposes("BitShift")
def shift(b: Builder, operator: str) -> Any:
    x = integers(b, dtype=U8)
    return b.node("BitShift", [x, partner(b, x, low=0, high=3)], direction=b.draw.choice(["LEFT", "RIGHT"]))


@proposes("QuantizeLinear")
def quantize(b: Builder, operator: str) -> Any:
    return _quantized(b, floats(b))


def _quantized(b: Builder, x: Val) -> Val:
    dtype = b.draw.choice([U8, I8])
    if b.opset >= 13 and x.rank and b.chance(0.4):
        axis = b.draw.randrange(x.rank)
        block = b.draw.choice([f for f in range(1, x.shape[axis] + 1) if x.shape[axis] % f == 0])
        if b.opset >= 21 and b.chance(0.4):
            shape = tuple(e // block if a == axis else e for a, e in enumerate(x.shape))
            scale = b.constant(b.array(shape, F, 0.02, 0.1))
            return b.node(
                "QuantizeLinear", [x, scale, b.constant(b.array(shape, dtype, 0, 9))], axis=axis, block_size=block
            )
        size = x.shape[axis]
        scale, zero = b.array((size,), F, 0.02, 0.1), b.array((size,), dtype, 0, 9)
        signed = axis - x.rank if b.chance(0.3) else axis
        return b.node("QuantizeLinear", [x, b.constant(scale), b.constant(zero)], axis=signed)
    return b.node("QuantizeLinear", [x, b.constant(0.03, F), b.constant(3, dtype)])


@proposes("DequantizeLinear")
def dequantize(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype in (U8, I8) and not v.constant)
    if x is None or b.chance(0.2):
        x = _quantized(b, floats(b)) if b.chance(0.7) else b.input(b.shape(b.draw.randint(1, 4)), I8, -50, 50)
    if b.opset >= 13 and x.rank and b.chance(0.4):
        axis = b.draw.randrange(x.rank)
        size = x.shape[axis]
        zero = b.constant(b.array((size,), x.dtype.type, 0, 9))
        return b.node("DequantizeLinear", [x, b.constant(b.array((size,), F, 0.01, 0.1)), zero], axis=axis)
    given = [x, b.constant(0.02, F), b.constant(3, x.dtype)]
    return b.node("DequantizeLinear", given[: b.draw.choice([2, 3])])


@proposes("DynamicQuantizeLinear")
def dynamic_quantize(b: Builder, operator: str) -> Any:
    return b.node("DynamicQuantizeLinear", [floats(b, 1)], results=3)


@proposes("Shape")
def shape(b: Builder, operator: str) -> Any:
    x = floats(b)
    bounds = (
        {"start": b.draw.choice([0, 1, -1]), "end": b.draw.choice([-1, 2])} if b.opset >= 15 and b.chance(0.2) else {}
    )
    return b.node("Shape", [x], **bounds)


@proposes("Size")
def size(b: Builder, operator: str) -> Any:
    return b.node("Size", [floats(b)])


# -- along axes ------------------------------------------------------------------------------------------------------


def _axis(b: Builder, rank: int, *, since: int = 11) -> int:
    axis = b.draw.randrange(rank)
    return axis - rank if b.opset >= since and b.chance(0.4) else axis


@proposes("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def normalising(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = _axis(b, x.rank) if b.chance(0.8) else None
    extra = {"p": b.draw.choice([1, 2])} if operator == "LpNormalization" and b.chance(0.5) else {}
    return b.node(operator, [x], axis=axis, **extra)


_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


@proposes(*_REDUCTIONS.split())
def reduction(b: Builder, operator: str) -> Any:
    x = floats(b, 1 if b.chance(0.9) else 0)
    if operator in ("ReduceLogSum", "ReduceL2", "ReduceLogSumExp"):
        x = positive(b, x)
    keepdims = b.draw.choice([None, 0, 1, 0])
    since = 13 if operator == "ReduceSum" else 18
    if b.chance(0.15) or x.rank == 0:
        noop = b.draw.choice([None, 1]) if b.opset >= since else None
        return b.node(operator, [x], keepdims=keepdims, noop_with_empty_axes=noop)
    axes = b.draw.sample(range(x.rank), b.draw.randint(1, min(3, x.rank)))
    if b.opset >= 11:
        axes = [a - x.rank if b.chance(0.3) else a for a in axes]
    if b.opset >= since:
        return b.node(operator, [x, b.ints(axes)], keepdims=keepdims)
    return b.node(operator, [x], axes=axes, keepdims=keepdims)


@proposes("ArgMax", "ArgMin")
def arg(b: Builder, operator: str) -> Any:
    x = floats(b, 1) if b.chance(0.7) else integers(b, 1)
    last = 1 if b.opset >= 12 and b.chance(0.3) else None
    return b.node(operator, [x], axis=_axis(b, x.rank), keepdims=b.draw.choice([0, 1, None]), select_last_index=last)


@proposes("Concat")
def concat(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = b.draw.randrange(x.rank)

    def alike(v: Val) -> bool:
        return (
            v.dtype == F
            and v.rank == x.rank
            and all(e == f or a == axis for a, (e, f) in enumerate(zip(v.shape, x.shape, strict=True)))
        )

    rest: list[Val] = []
    for _ in range(b.draw.randint(0 if b.chance(0.1) else 1, 3)):
        other = b.pick(alike)
        if other is None or b.chance(0.3):
            shape = tuple(b.extent() if a == axis else e for a, e in enumerate(x.shape))
            other = b.constant(b.array(shape)) if b.chance(0.5) or len(b.inputs) > 5 else b.input(shape)
        rest.append(other)
    given = [x, *rest]
    b.draw.shuffle(given)
    return b.node("Concat", given, axis=axis - x.rank if b.opset >= 11 and b.chance(0.3) else axis)


@proposes("Split")
def split(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = b.draw.randrange(x.rank)
    extent = x.shape[axis]
    if extent < 2:
        raise Rejected("nothing to split")
    parts = b.draw.randint(1, min(extent, 4))
    cuts = sorted(b.draw.sample(range(1, extent), parts - 1))
    sizes = [high - low for low, high in zip([0, *cuts], [*cuts, extent], strict=True)]
    signed = axis - x.rank if b.opset >= 11 and b.chance(0.3) else axis
    even = extent % parts == 0 and b.chance(0.4)
    if even and b.opset >= 18:
        return b.node("Split", [x], results=parts, axis=signed, num_outputs=parts)
    if even and b.opset < 18:
        return b.node("Split", [x], results=parts, axis=signed)
    if b.opset >= 13:
        return b.node("Split", [x, b.ints(sizes)], results=parts, axis=signed)
    return b.node("Split", [x], results=parts, axis=signed, split=sizes)


@proposes("TopK")
def top_k(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = _axis(b, x.rank)
    k = b.draw.randint(1, x.shape[axis])
    if b.opset < 10:
        return b.node("TopK", [x], results=2, axis=axis, k=k)
    extra = {"largest": b.draw.choice([0, 1])} if b.opset >= 11 else {}
    return b.node("TopK", [x, b.ints([k])], results=2, axis=axis, **extra)


def _indices(b: Builder, shape: tuple[int, ...], top: int) -> Val:
    array = b.array(shape, I64, 0, top)
    if b.chance(0.5):
        return b.constant(array)
    if b.chance(0.5) or len(b.inputs) > 5:
        return b.node("Identity", [b.constant(array)]) if b.chance(0.3) else b.constant(array)
    return b.input(shape, I64, 0, top)


@proposes("GatherElements")
def gather_elements(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = _axis(b, x.rank)
    shape = list(x.shape)
    shape[axis] = b.extent()
    if b.chance(0.2):
        shape = [b.draw.randint(1, e) if a != axis % x.rank else e for a, e in enumerate(shape)]
    return b.node("GatherElements", [x, _indices(b, tuple(shape), x.shape[axis] - 1)], axis=axis)


@proposes("ScatterElements", "Scatter")
def scatter_elements(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    if operator == "ScatterElements" and b.opset < 11:
        raise Rejected("not yet there")
    axis = _axis(b, x.rank)
    shape = list(x.shape)
    count = b.draw.randint(1, x.shape[axis])
    shape[axis] = count
    # Each place once: what is written twice is not defined.
    order = np.argsort(b.numbers.random(x.shape), axis=axis).take(range(count), axis=axis).astype(I64)
    updates = b.pick(lambda v: v.dtype == F and v.shape == tuple(shape)) or b.input(tuple(shape))
    reduction = {"reduction": "add"} if operator == "ScatterElements" and b.opset >= 16 and b.chance(0.2) else {}
    return b.node(operator, [x, b.constant(order), updates], axis=axis, **reduction)


@proposes("CumSum", "CumProd")
def cumulative(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = _axis(b, x.rank)
    given = b.constant(np.array(axis if b.chance(0.5) else [axis], b.draw.choice([I64, I32])))
    return b.node(operator, [x, given], exclusive=b.draw.choice([None, 1]), reverse=b.draw.choice([None, 1]))


@proposes("Pad")
def pad(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    modes = ["constant", "edge", "reflect"] + (["wrap"] if b.opset >= 19 else [])
    mode = b.draw.choice(modes)
    axes = list(range(x.rank))
    named = b.opset >= 18 and b.chance(0.4)
    if named:
        axes = b.draw.sample(axes, b.draw.randint(1, x.rank))
    lowest = -1 if mode == "constant" and b.chance(0.2) else 0
    most = [min(2, x.shape[a] - 1) if mode in ("reflect", "wrap") else 2 for a in axes]
    pads = [b.draw.randint(lowest, m) if b.chance(0.5) else 0 for m in (*most, *most)]
    if b.opset < 11:
        return b.node("Pad", [x], mode=mode, pads=pads, value=0.5 if mode == "constant" else None)
    value = b.constant(0.25, F) if mode == "constant" and b.chance(0.5) else None
    given = [x, b.ints(pads), value, b.ints([a - x.rank if b.chance(0.3) else a for a in axes]) if named else None]
    while given[-1] is None:
        given.pop()
    return b.node("Pad", given, mode=mode)


@proposes("Slice")
def slice_(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axes = sorted(b.draw.sample(range(x.rank), b.draw.randint(1, x.rank)))
    default = b.chance(0.3)
    if default:
        axes = list(range(len(axes)))
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = x.shape[axis]
        low = b.draw.randrange(extent)
        high = b.draw.randint(low + 1, extent)
        step = b.draw.choice([1, 1, 2])
        if b.opset >= 10 and b.chance(0.15):
            low, high, step = extent - 1, -extent - 1, -1
        elif b.chance(0.3):
            low, high = low - extent, high - extent if high < extent else 1 << 31
        starts.append(low), ends.append(high), steps.append(step)
    if b.opset < 10:
        return b.node("Slice", [x], starts=starts, ends=ends, axes=None if default else axes)
    signed = [a - x.rank if b.chance(0.3) else a for a in axes]
    given = [x, b.ints(starts), b.ints(ends), None if default else b.ints(signed)]
    if set(steps) != {1}:
        given.append(b.ints(steps))
    while given[-1] is None:
        given.pop()
    return b.node("Slice", given)


@proposes("Tile")
def tile(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    return b.node("Tile", [x, b.ints([b.draw.choice([1, 1, 2, 3]) for _ in x.shape])])


@proposes("Expand")
def expand(b: Builder, operator: str) -> Any:
    x = floats(b)
    shape = [e if e > 1 or b.chance(0.5) else b.draw.choice([1, 2, 3]) for e in x.shape]
    if b.chance(0.3):
        shape = [1 if b.chance(0.3) else e for e in shape]
    shape = shape[b.draw.randint(0, len(shape)) :] if b.chance(0.2) else shape
    lead = (
        [b.draw.choice([1, 2, 3]) for _ in range(b.draw.randint(0, 2))]
        if b.chance(0.3) and len(shape) == x.rank
        else []
    )
    return b.node("Expand", [x, b.ints([*lead, *shape])])


@proposes("Gather")
def gather(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = _axis(b, x.rank)
    shape = tuple(b.extent() for _ in range(b.draw.choice([0, 1, 1, 2])))
    return b.node("Gather", [x, _indices(b, shape, x.shape[axis] - 1)], axis=axis)


@proposes("LayerNormalization", "RMSNormalization")
def layer_normalization(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = _axis(b, x.rank)
    shape = x.shape[axis % x.rank :]
    if np.prod(shape) < 3:
        raise Rejected("nothing to normalise")
    scale = b.constant(b.array(shape, F, 0.5, 2)) if b.chance(0.6) else b.input(shape, F, 0.5, 2)
    bias = [b.constant(b.array(shape))] if operator == "LayerNormalization" and b.chance(0.6) else []
    results = b.draw.choice([1, 1, 1, 3]) if operator == "LayerNormalization" else 1
    return b.node(
        operator, [x, scale, *bias], axis=axis if axis not in (-1,) or b.chance(0.5) else None, results=results
    )


@proposes("MeanVarianceNormalization")
def mean_variance(b: Builder, operator: str) -> Any:
    x = floats(b, 3, 4)
    axes = None if x.rank == 4 and b.chance(0.4) else sorted(b.draw.sample(range(x.rank), 2))
    return b.node(operator, [x], axes=axes)


@proposes("ReverseSequence")
def reverse_sequence(b: Builder, operator: str) -> Any:
    x = floats(b, 2)
    batch = b.draw.choice([0, 1])
    lengths = b.array((x.shape[batch],), I64, 1, x.shape[1 - batch])
    return b.node(operator, [x, b.constant(lengths)], batch_axis=batch, time_axis=1 - batch)


@proposes("Trilu")
def trilu(b: Builder, operator: str) -> Any:
    x = floats(b, 2)
    given = [x, b.constant(np.array(b.draw.choice([-1, 0, 1]), I64))]
    return b.node("Trilu", given[: b.draw.choice([1, 2])], upper=b.draw.choice([0, 1]))


@proposes("Det")
def determinant(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype == F and v.rank >= 2 and v.shape[-1] == v.shape[-2] > 1)
    if x is None:
        x = b.input((*b.shape(b.draw.choice([1, 2])), 3, 3))
        if b.chance(0.5):
            x = b.node(
                "Transpose", [b.node("Transpose", [x], perm=[*range(x.rank)][::-1])], perm=[*range(x.rank)][::-1]
            )
    return b.node("Det", [x])


@proposes("Compress")
def compress(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    if b.chance(0.15):
        return b.node("Compress", [x, b.constant(b.array((x.array.size,), B))])
    axis = _axis(b, x.rank)
    condition = b.array((x.shape[axis],), B)
    condition[0] = True
    return b.node("Compress", [x, b.constant(condition)], axis=axis)


@proposes("OneHot")
def one_hot(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype == I64 and v.rank <= 4 and v.array.size) or integers(b, dtype=I64)
    axis = b.draw.choice([-1, *range(x.rank + 1)])
    depth = b.constant(np.array(b.draw.choice([3, 5]), I64))
    return b.node("OneHot", [x, depth, b.constant(np.array([0.25, 1.5], F))], axis=axis)


# -- named axes ------------------------------------------------------------------------------------------------------


def image(b: Builder, low: int = 3, high: int = 5, *, batch: int = 0, largest: int = 1500) -> Val:
    """A value of a rank in this range, as the channels-first operand of a named operator; often wrapped."""
    for _ in range(20):
        x = floats(b, low, high)
        if x.array.size <= largest and (not batch or x.shape[0] == batch):
            break
    else:
        raise Rejected("no such image")
    if b.chance(0.4):
        x = b.node("Transpose", [x], perm=(0, x.rank - 1, *range(1, x.rank - 1)))
    return x


def back(b: Builder, y: Val) -> Val:
    """The result, sometimes brought back to channels-last."""
    if y.rank > 2 and b.chance(0.4):
        return b.node("Transpose", [y], perm=(0, *range(2, y.rank), 1))
    return y


def _window(b: Builder, spatial: tuple[int, ...], dilated: bool = False) -> dict[str, Any]:
    kernel = [b.draw.randint(1, min(3, e)) for e in spatial]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if b.chance(0.4):
        found["strides"] = [b.draw.choice([1, 2]) for _ in spatial]
    if b.chance(0.15):
        found["auto_pad"] = b.draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif b.chance(0.5):
        found["pads"] = [b.draw.randint(0, max(0, k - 1)) for k in (*kernel, *kernel)]
    if dilated and "auto_pad" not in found and b.chance(0.15):
        found["dilations"] = [b.draw.choice([1, 2]) for _ in spatial]
    return found


def kernel(b: Builder, shape: tuple[int, ...]) -> Val:
    """A weight: stored, transposed or dequantised from a stored one, or (seldom) computed from the inputs."""
    kind = b.draw.random()
    if kind < 0.5 or b.opset < 10:
        return b.constant(b.array(shape, F, -1, 1))
    if kind < 0.65:
        perm = b.perm(len(shape))
        stored = b.constant(b.array([shape[p] for p in np.argsort(perm).argsort()], F, -1, 1))
        laid = [0] * len(shape)
        for place, axis in enumerate(perm):
            laid[axis] = shape[place]
        stored = b.constant(b.array(laid, F, -1, 1))
        return b.node("Transpose", [stored], perm=perm)
    if kind < 0.85:
        quantised = b.constant(b.array(shape, I8, -60, 60))
        if b.opset >= 13 and b.chance(0.6):
            scale, zero = b.array((shape[0],), F, 0.01, 0.02), b.array((shape[0],), I8, 0, 3)
            return b.node("DequantizeLinear", [quantised, b.constant(scale), b.constant(zero)], axis=0)
        return b.node("DequantizeLinear", [quantised, b.constant(0.015, F), b.constant(1, I8)])
    if kind < 0.92:
        flat = b.constant(b.array((int(np.prod(shape)),), F, -1, 1))
        return b.node("Reshape", [flat, b.ints(shape)])
    return b.input(shape, F, -1, 1, fixed=True) if len(b.inputs) < 6 else b.constant(b.array(shape, F, -1, 1))


@proposes("Conv", "ConvTranspose")
def convolution(b: Builder, operator: str) -> Any:
    x = image(b)
    channels, spatial = x.shape[1], x.shape[2:]
    window = _window(b, spatial, dilated=operator == "Conv")
    size = tuple(window["kernel_shape"])
    if b.chance(0.3):
        del window["kernel_shape"]
    group = b.draw.choice([f for f in range(1, channels + 1) if channels % f == 0]) if b.chance(0.35) else 1
    many = group * b.draw.choice([1, 1, 2, 3])
    shape = (many, channels // group, *size) if operator == "Conv" else (channels, many // group, *size)
    bias = [b.constant(b.array((many,)))] if b.chance(0.6) else []
    if operator == "ConvTranspose" and window.get("auto_pad"):
        del window["auto_pad"]
    y = b.node(operator, [x, kernel(b, shape), *bias], group=group if group > 1 else None, **window)
    return back(b, y)


@proposes("AveragePool", "MaxPool", "LpPool")
def pool(b: Builder, operator: str) -> Any:
    x = image(b)
    window = _window(b, x.shape[2:])
    if operator == "AveragePool" and b.chance(0.3):
        window["count_include_pad"] = 1
    # A last window that would begin in the padding is none; onnx's inference counts it all the same in some cases.
    if b.opset >= 10 and operator != "LpPool" and not window.get("pads") and min(window["kernel_shape"]) >= 2:
        window["ceil_mode"] = int(b.chance(0.4))
    if operator == "MaxPool" and b.opset >= 8 and b.chance(0.3):
        y, indices = b.node("MaxPool", [x], results=2, **window)
        return back(b, y), indices
    return back(b, b.node(operator, [x], **window))


@proposes("MaxUnpool")
def max_unpool(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if min(x.shape[2:]) < 2:
        raise Rejected("too small")
    y, indices = b.node("MaxPool", [x], results=2, kernel_shape=[2, 2], strides=[2, 2])
    if b.chance(0.5):
        y = b.node("Relu", [y])
    size = [b.ints(x.shape)] if b.chance(0.5) else []
    return back(b, b.node("MaxUnpool", [y, indices, *size], kernel_shape=[2, 2], strides=[2, 2]))


@proposes("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(b: Builder, operator: str) -> Any:
    return back(b, b.node(operator, [image(b)]))


@proposes("BatchNormalization")
def batch_normalization(b: Builder, operator: str) -> Any:
    x = image(b, 2, 5) if b.chance(0.8) else floats(b, 2)
    channels = (x.shape[1],)
    given = [b.constant(b.array(channels, F, 0.5, 2)) for _ in range(3)]
    variance = b.constant(b.array(channels, F, 0.5, 2)) if b.chance(0.8) else b.input(channels, F, 0.5, 2)
    extra = {"epsilon": 1e-3} if b.chance(0.5) else {}
    return back(b, b.node(operator, [x, *given, variance], **extra))


@proposes("InstanceNormalization")
def instance_normalization(b: Builder, operator: str) -> Any:
    x = image(b)
    channels = (x.shape[1],)
    return back(b, b.node(operator, [x, b.constant(b.array(channels, F, 0.5, 2)), b.constant(b.array(channels))]))


@proposes("GroupNormalization")
def group_normalization(b: Builder, operator: str) -> Any:
    x = image(b)
    channels = x.shape[1]
    groups = b.draw.choice([f for f in range(1, channels + 1) if channels % f == 0])
    size = (channels if b.opset >= 21 else groups,)
    given = [x, b.constant(b.array(size, F, 0.5, 2)), b.constant(b.array(size))]
    return back(b, b.node(operator, given, num_groups=groups))


@proposes("LRN")
def lrn(b: Builder, operator: str) -> Any:
    return back(b, b.node("LRN", [image(b, 4, 4)], size=3, alpha=0.5))


@proposes("DepthToSpace")
def depth_to_space(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if x.shape[1] % 4:
        x = b.node("Concat", [x] * 4, axis=1)
    mode = b.draw.choice(["DCR", "CRD"]) if b.opset >= 11 else None
    return back(b, b.node("DepthToSpace", [x], blocksize=2, mode=mode))


@proposes("SpaceToDepth")
def space_to_depth(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if x.shape[2] % 2 or x.shape[3] % 2:
        x = b.node("Concat", [x, x], axis=2)
        x = b.node("Concat", [x, x], axis=3)
    return back(b, b.node("SpaceToDepth", [x], blocksize=2))


@proposes("Resize", "Upsample")
def resize(b: Builder, operator: str) -> Any:
    x = image(b, 2, 5)
    mode = b.draw.choice(
        ["nearest", "linear", "cubic"] if operator == "Resize" and b.opset >= 11 else ["nearest", "linear"]
    )
    moving = b.draw.sample(range(x.rank), b.draw.choice([1, 2])) if b.chance(0.3) else list(range(x.rank))[-2:]
    scales = [b.draw.choice([1.0, 2.0, 1.5, 0.5]) if a in moving else 1.0 for a in range(x.rank)]
    if any(int(e * s) < 1 for e, s in zip(x.shape, scales, strict=True)):
        raise Rejected("nothing left")
    if operator == "Upsample":
        scales = [max(1.0, s) for s in scales]
        if b.opset < 9:
            return back(b, b.node("Upsample", [x], mode=mode, scales=scales))
        return back(b, b.node("Upsample", [x, b.constant(scales, F)], mode=mode))
    if b.opset < 11:
        return back(b, b.node("Resize", [x, b.constant(scales, F)], mode=mode))
    extra: dict[str, Any] = {"mode": mode}
    if b.chance(0.5):
        extra["coordinate_transformation_mode"] = b.draw.choice(
            ["asymmetric", "align_corners", "half_pixel", "pytorch_half_pixel"]
        )
    if mode == "nearest" and b.chance(0.5):
        extra["nearest_mode"] = b.draw.choice(["floor", "ceil", "round_prefer_ceil"])
    axes = None
    if b.opset >= 18 and b.chance(0.4):
        axes = b.draw.sample(range(x.rank), b.draw.randint(len(moving), x.rank))
        axes = [*moving, *[a for a in axes if a not in moving]][: x.rank]
        extra["axes"] = axes
    covered = axes if axes is not None else list(range(x.rank))
    roi = None if b.opset >= 13 else b.constant(np.zeros(0, F))
    if b.chance(0.5):
        return back(b, b.node("Resize", [x, roi, b.constant([scales[a] for a in covered], F)], **extra))
    sizes = b.ints([int(x.shape[a] * scales[a]) for a in covered])
    none = None if b.opset >= 13 else b.constant(np.zeros(0, F))
    return back(b, b.node("Resize", [x, roi, none, sizes], **extra))


@proposes("ConvInteger")
def integer_convolution(b: Builder, operator: str) -> Any:
    x = _bytes_image(b)
    w = b.constant(b.array((b.draw.choice([1, 2, 4]), x.shape[1], *(min(2, e) for e in x.shape[2:])), U8, 0, 9))
    zeros = [b.constant(3, U8), b.constant(1, U8)][: b.draw.choice([0, 1, 2])]
    return back(b, b.node("ConvInteger", [x, w, *zeros]))


def _bytes_image(b: Builder) -> Val:
    x = b.pick(lambda v: v.dtype == U8 and v.rank == 4 and not v.constant)
    if x is None or b.chance(0.3):
        x = b.node("QuantizeLinear", [floats(b, 4, 4), b.constant(0.05, F), b.constant(30, U8)])
    if b.chance(0.4):
        x = b.node("Transpose", [x], perm=(0, 3, 1, 2))
    return x


@proposes("QLinearConv")
def quantised_convolution(b: Builder, operator: str) -> Any:
    x = _bytes_image(b)
    many = b.draw.choice([1, 2, 4])
    w = b.constant(b.array((many, x.shape[1], *(min(2, e) for e in x.shape[2:])), U8, 0, 20))
    scale: Any = b.constant(0.02, F) if b.chance(0.5) else b.constant(b.array((many,), F, 0.01, 0.03))
    zero = b.constant(9, U8) if scale.rank == 0 else b.constant(np.full(many, 9), U8)
    bias = [b.constant(b.array((many,), I32, -50, 50))] if b.chance(0.5) else []
    given = [x, b.constant(0.05, F), b.constant(30, U8), w, scale, zero, b.constant(0.06, F), b.constant(60, U8), *bias]
    y = b.node("QLinearConv", given)
    return back(b, y)


@proposes("DeformConv")
def deformable(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if min(x.shape[2:]) < 2:
        raise Rejected("too small")
    size = (x.shape[0], 8, x.shape[2] - 1, x.shape[3] - 1)
    offset = b.input(size, F, -0.6, 0.6) if b.chance(0.5) else b.constant(b.array(size, F, -0.6, 0.6))
    bias = [b.constant(b.array((3,)))] if b.chance(0.5) else []
    mask = [b.constant(b.array((size[0], 4, *size[2:]), F, 0, 1))] if bias and b.chance(0.5) else []
    return back(b, b.node("DeformConv", [x, b.constant(b.array((3, x.shape[1], 2, 2))), offset, *bias, *mask]))


@proposes("GridSample")
def grid_sample(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    grid = b.array((x.shape[0], 2, 3, 2), F, -0.9, 0.9)
    given = b.constant(grid) if b.chance(0.5) else b.input(grid.shape, F, -0.9, 0.9)
    modes = ["linear", "nearest", "cubic"] if b.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    return back(b, b.node("GridSample", [x, given], mode=b.draw.choice(modes), align_corners=b.draw.choice([0, 1])))


@proposes("RoiAlign")
def roi_align(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    boxes = b.constant(np.array([[0, 0, 1.5, 1.5], [0.5, 0, 2, 1]], F))
    batch = b.constant(np.array([0, x.shape[0] - 1], I64))
    return back(b, b.node("RoiAlign", [x, boxes, batch], output_height=2, output_width=2))


@proposes("MaxRoiPool")
def roi_pool(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    boxes = b.constant(np.array([[0, 0, 0, x.shape[3] - 1, x.shape[2] - 1]], F))
    return back(b, b.node("MaxRoiPool", [x, boxes], pooled_shape=[2, 1]))


# -- contractions ----------------------------------------------------------------------------------------------------


@proposes("MatMul")
def matmul(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    kind = b.draw.random()
    if kind < 0.35:
        other: Val = kernel(b, (x.shape[-1], b.extent() + 1))
    elif kind < 0.5:
        found = b.pick(lambda v: v.dtype == F and v.rank >= 2 and v.shape[-2] == x.shape[-1])
        other = found or b.constant(b.array((x.shape[-1], 2)))
    elif kind < 0.7 and x.rank >= 2:
        other = b.node("Transpose", [x], perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2))
    elif kind < 0.85:
        lead = _masked(b, x.shape[:-2])
        shape = (*lead, x.shape[-1], b.extent())
        other = b.input(shape) if len(b.inputs) < 6 else b.constant(b.array(shape))
    elif kind < 0.92:
        other = b.constant(b.array((x.shape[-1],)))
    else:
        return b.node("MatMul", [kernel(b, (b.extent(), x.shape[-2])) if x.rank >= 2 else x, x])
    return b.node("MatMul", [x, other])


@proposes("MatMulInteger")
def integer_matmul(b: Builder, operator: str) -> Any:
    x = _bytes(b)
    zeros = [b.constant(3, U8)][: b.draw.choice([0, 1])]
    return b.node("MatMulInteger", [x, b.constant(b.array((x.shape[-1], 3), U8, 0, 9)), *zeros])


def _bytes(b: Builder) -> Val:
    x = b.pick(lambda v: v.dtype == U8 and v.rank >= 2 and not v.constant)
    if x is None or b.chance(0.3):
        x = b.node("QuantizeLinear", [floats(b, 2, 4), b.constant(0.05, F), b.constant(30, U8)])
    return x


@proposes("QLinearMatMul")
def quantised_matmul(b: Builder, operator: str) -> Any:
    x = _bytes(b)
    w = b.constant(b.array((x.shape[-1], 3), U8, 0, 20))
    scales = [b.constant(0.05, F), b.constant(0.02, F), b.constant(0.06, F)]
    zeros = [b.constant(30, U8), b.constant(9, U8), b.constant(60, U8)]
    return b.node(operator, [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2]])


@proposes("Gemm")
def gemm(b: Builder, operator: str) -> Any:
    x = floats(b, 2, 2)
    flip, other_flip = b.draw.choice([0, 1]), b.draw.choice([0, 1])
    rows, inner = x.shape[::-1] if flip else x.shape
    columns = b.extent()
    shape = (columns, inner) if other_flip else (inner, columns)
    found = b.pick(lambda v: v.dtype == F and v.rank == 2 and v.shape[1 if other_flip else 0] == inner)
    other = found if found is not None and b.chance(0.4) else kernel(b, shape)
    columns = other.shape[0 if other_flip else 1]
    bias = b.draw.choice([(columns,), (rows, columns), (1, columns), (rows, 1), ()])
    given = [x, other, b.constant(b.array(bias))]
    if b.opset >= 11 and b.chance(0.3):
        given.pop()
    if b.chance(0.15) and len(given) == 3 and len(b.inputs) < 6:
        given[2] = b.input(bias)
    factors = {"alpha": 0.5, "beta": 1.5} if b.chance(0.3) else {}
    return b.node("Gemm", given, transA=flip or None, transB=other_flip or None, **factors)


@proposes("Einsum")
def einsum(b: Builder, operator: str) -> Any:
    x = floats(b, 2, 4)
    letters = "nchw"[: x.rank]
    kind = b.draw.random()
    if kind < 0.3:
        w = kernel(b, (x.shape[-1], 3))
        return b.node("Einsum", [x, w], equation=f"{letters},{letters[-1]}k->{letters[:-1]}k")
    if kind < 0.5:
        target = "".join(b.draw.sample(letters, x.rank))
        return b.node("Einsum", [x], equation=f"{letters}->{target}")
    if kind < 0.6:
        kept = "".join(sorted(b.draw.sample(letters, x.rank - 1)))
        return b.node("Einsum", [x], equation=f"{letters} -> {kept}")
    if kind < 0.8:
        other = b.pick(lambda v: v.dtype == F and v.shape[:-1] == x.shape[:-1] and v.rank == x.rank) or x
        return b.node("Einsum", [x, other], equation=f"{letters},{letters[:-1]}k->{letters[:-1]}")
    axis = b.draw.randrange(x.rank)
    w = b.constant(b.array((4, x.shape[axis])))
    return b.node("Einsum", [x, w], equation=f"{letters},o{letters[axis]}->{letters.replace(letters[axis], 'o')}")


# -- relabels --------------------------------------------------------------------------------------------------------


@proposes("Transpose")
def transpose(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: not v.constant and v.array.size > 0) if b.chance(0.2) else None
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
        given += [b.constant(0.4, F), b.constant(False, B)][: b.draw.choice([1, 2])]
    return b.node("Dropout", given, results=results)


@proposes("Squeeze")
def squeeze(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype == F and not v.constant and 1 in v.shape and v.rank > 1)
    if x is None:
        x = (
            b.node("Unsqueeze", [floats(b, 1, 4)], axes=[1])
            if b.opset < 13
            else b.node("Unsqueeze", [floats(b, 1, 4), b.ints([1])])
        )
    units = [a for a, e in enumerate(x.shape) if e == 1]
    axes = b.draw.sample(units, b.draw.randint(1, len(units)))
    if b.chance(0.2):
        return b.node("Squeeze", [x])
    if b.opset >= 11:
        axes = [a - x.rank if b.chance(0.3) else a for a in axes]
    # onnx infers another rank where the attribute is not sorted.
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
    return b.node("Unsqueeze", [x], axes=axes) if b.opset < 13 else b.node("Unsqueeze", [x, b.ints(axes)])


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
        shape = _insert_units(b, tuple(e for e in shape if e > 1), b.draw.randint(len([e for e in shape if e > 1]), 5))
    elif kind < 0.5 and shape:
        rest = list(shape)
        place = b.draw.randrange(len(rest))
        factors = [f for f in range(2, rest[place]) if rest[place] % f == 0]
        if factors:
            factor = b.draw.choice(factors)
            rest[place : place + 1] = [factor, rest[place] // factor]
        shape = rest
    elif kind < 0.75 and len(shape) > 1:
        place = b.draw.randrange(len(shape) - 1)
        shape[place : place + 2] = [shape[place] * shape[place + 1]]
    else:
        shape = _refactored(b, x.array.size)
    given = list(shape)
    for place, extent in enumerate(given):
        if place < x.rank and extent == x.shape[place] and b.chance(0.2):
            given[place] = 0
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
