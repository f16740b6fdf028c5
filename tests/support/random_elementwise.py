"""Elementwise operators and quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_graphs import Builder, Val
from random_operands import booleans, element_type, fits, floats, integers, masked, partner, positive, proposes, unit

D, F16, I64, I32, I8, U8, B = np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_


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
    return b.node(operator, [b.node("Add", [x, b.constant(0.75, b.real)]) if operator == "Acosh" else x])


@proposes("Cast")
def cast(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype in (b.real, I32, I64, B, F16, D) and v.constant == b.is_constant) or floats(b)
    return b.node("Cast", [x], to=element_type(b.draw.choice([b.real, b.real, F16, D, I32, I64, B])))


@proposes("CastLike")
def cast_like(b: Builder, operator: str) -> Any:
    like = b.draw.choice([lambda: b.parameter((2,), b.draw.choice([F16, D, I32])), lambda: floats(b)])()
    return b.node("CastLike", [floats(b), like])


@proposes("Clip")
def clip(b: Builder, operator: str) -> Any:
    x = floats(b)
    if b.opset < 11:
        return b.node("Clip", [x], min=-0.5, max=b.draw.choice([0.6, None]))
    bounds = [b.draw.choice([None, b.constant(-0.5, b.real)]), b.constant(0.6, b.real)]
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
    y = partner(b, x) if x.dtype == b.real else partner(b, x, low=0, high=6)
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
        return b.node("Mod", [x, b.parameter(masked(b, x.shape), I32, 1, 4)])
    x = floats(b)
    return b.node("Mod", [x, b.parameter(masked(b, x.shape), b.real, 0.6, 2)], fmod=1)


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
    condition = b.pick(lambda v: v.dtype == B and fits(v.shape, x.shape))
    if condition is None or b.chance(0.4):
        condition = b.parameter(masked(b, x.shape), B) if b.chance(0.3) else b.input(masked(b, x.shape), B)
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
    return quantized(b, floats(b))


def quantized(b: Builder, x: Val) -> Val:
    dtype = b.draw.choice([U8, I8])
    if b.opset >= 13 and x.rank and b.chance(0.4):
        axis = b.draw.randrange(x.rank)
        block = b.draw.choice([f for f in range(1, x.shape[axis] + 1) if x.shape[axis] % f == 0])
        if b.opset >= 21 and b.chance(0.4):
            shape = tuple(e // block if a == axis else e for a, e in enumerate(x.shape))
            scale = b.parameter(shape, b.real, 0.02, 0.1)
            return b.node("QuantizeLinear", [x, scale, b.parameter(shape, dtype, 0, 9)], axis=axis, block_size=block)
        size = x.shape[axis]
        scale, zero = b.array((size,), b.real, 0.02, 0.1), b.array((size,), dtype, 0, 9)
        signed = axis - x.rank if b.chance(0.3) else axis
        return b.node("QuantizeLinear", [x, b.constant(scale), b.constant(zero)], axis=signed)
    return b.node("QuantizeLinear", [x, b.constant(0.03, b.real), b.constant(3, dtype)])


@proposes("DequantizeLinear")
def dequantize(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype in (U8, I8) and v.constant == b.is_constant)
    if x is None or b.chance(0.2):
        x = quantized(b, floats(b)) if b.chance(0.7) else b.input(b.shape(b.draw.randint(1, 4)), I8, -50, 50)
    if b.opset >= 13 and x.rank and b.chance(0.4):
        axis = b.draw.randrange(x.rank)
        size = x.shape[axis]
        zero = b.parameter((size,), x.dtype.type, 0, 9)
        return b.node("DequantizeLinear", [x, b.parameter((size,), b.real, 0.01, 0.1), zero], axis=axis)
    given = [x, b.constant(0.02, b.real), b.constant(3, x.dtype)]
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
