"""Random contractions: MatMul, Gemm, Einsum."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_graphs import Builder, Val
from random_operands import floats, kernel, masked, proposes

U8 = np.uint8


@proposes("MatMul")
def matmul(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    kind = b.draw.random()
    if kind < 0.35:
        other: Val = kernel(b, (x.shape[-1], b.extent() + 1))
    elif kind < 0.5:
        found = b.pick(lambda v: v.dtype == b.real and v.rank >= 2 and v.shape[-2] == x.shape[-1])
        other = found or b.parameter((x.shape[-1], 2))
    elif kind < 0.7 and x.rank >= 2:
        other = b.node("Transpose", [x], perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2))
    elif kind < 0.85:
        lead = masked(b, x.shape[:-2])
        shape = (*lead, x.shape[-1], b.extent())
        other = b.input(shape) if len(b.inputs) < 6 else b.parameter(shape)
    elif kind < 0.92:
        other = b.parameter((x.shape[-1],))
    else:
        return b.node("MatMul", [kernel(b, (b.extent(), x.shape[-2])) if x.rank >= 2 else x, x])
    return b.node("MatMul", [x, other])


@proposes("MatMulInteger")
def integer_matmul(b: Builder, operator: str) -> Any:
    x = bytes_of(b)
    zeros = [b.constant(3, U8)][: b.draw.choice([0, 1])]
    return b.node("MatMulInteger", [x, b.parameter((x.shape[-1], 3), U8, 0, 9), *zeros])


def bytes_of(b: Builder) -> Val:
    x = b.pick(lambda v: v.dtype == U8 and v.rank >= 2 and v.constant == b.is_constant)
    if x is None or b.chance(0.3):
        x = b.node("QuantizeLinear", [floats(b, 2, 4), b.constant(0.05, b.real), b.constant(30, U8)])
    return x


@proposes("QLinearMatMul")
def quantised_matmul(b: Builder, operator: str) -> Any:
    x = bytes_of(b)
    w = b.parameter((x.shape[-1], 3), U8, 0, 20)
    scales = [b.constant(0.05, b.real), b.constant(0.02, b.real), b.constant(0.06, b.real)]
    zeros = [b.constant(30, U8), b.constant(9, U8), b.constant(60, U8)]
    return b.node(operator, [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2]])


@proposes("Gemm")
def gemm(b: Builder, operator: str) -> Any:
    x = floats(b, 2, 2)
    flip, other_flip = b.draw.choice([0, 1]), b.draw.choice([0, 1])
    rows, inner = x.shape[::-1] if flip else x.shape
    columns = b.extent()
    shape = (columns, inner) if other_flip else (inner, columns)
    found = b.pick(lambda v: v.dtype == b.real and v.rank == 2 and v.shape[1 if other_flip else 0] == inner)
    other = found if found is not None and b.chance(0.4) else kernel(b, shape)
    columns = other.shape[0 if other_flip else 1]
    bias = b.draw.choice([(columns,), (rows, columns), (1, columns), (rows, 1), ()])
    given = [x, other, b.parameter(bias)]
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
        other = b.pick(lambda v: v.dtype == b.real and v.shape[:-1] == x.shape[:-1] and v.rank == x.rank) or x
        return b.node("Einsum", [x, other], equation=f"{letters},{letters[:-1]}k->{letters[:-1]}")
    axis = b.draw.randrange(x.rank)
    w = b.parameter((4, x.shape[axis]))
    return b.node("Einsum", [x, w], equation=f"{letters},o{letters[axis]}->{letters.replace(letters[axis], 'o')}")
