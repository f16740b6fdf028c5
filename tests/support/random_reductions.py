"""Random operators that reduce, normalize or scan along axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_graphs import Builder, Rejected
from random_operands import axis_of, floats, integers, positive, proposes

I64, I32 = np.int64, np.int32


@proposes("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def normalising(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = axis_of(b, x.rank) if b.chance(0.8) else None
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
    return b.node(operator, [x], axis=axis_of(b, x.rank), keepdims=b.draw.choice([0, 1, None]), select_last_index=last)


@proposes("TopK")
def top_k(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = axis_of(b, x.rank)
    k = b.draw.randint(1, x.shape[axis])
    if b.opset < 10:
        return b.node("TopK", [x], results=2, axis=axis, k=k)
    extra = {"largest": b.draw.choice([0, 1])} if b.opset >= 11 else {}
    return b.node("TopK", [x, b.ints([k])], results=2, axis=axis, **extra)


@proposes("CumSum", "CumProd")
def cumulative(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = axis_of(b, x.rank)
    given = b.constant(np.array(axis if b.chance(0.5) else [axis], b.draw.choice([I64, I32])))
    return b.node(operator, [x, given], exclusive=b.draw.choice([None, 1]), reverse=b.draw.choice([None, 1]))


@proposes("LayerNormalization", "RMSNormalization")
def layer_normalization(b: Builder, operator: str) -> Any:
    if b.opset < 17:
        raise Rejected("not yet there")
    x = floats(b, 1)
    axis = axis_of(b, x.rank)
    shape = x.shape[axis % x.rank :]
    if np.prod(shape) < 3:
        raise Rejected("nothing to normalise")
    scale = b.parameter(shape, b.real, 0.5, 2) if b.chance(0.6) else b.input(shape, b.real, 0.5, 2)
    bias = [b.parameter(shape)] if operator == "LayerNormalization" and b.chance(0.6) else []
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
    x = b.pick(lambda v: v.dtype == b.real and v.rank >= 2 and v.shape[-1] == v.shape[-2] > 1)
    if x is None:
        x = b.input((*b.shape(b.draw.choice([1, 2])), 3, 3))
        if b.chance(0.5):
            x = b.node(
                "Transpose", [b.node("Transpose", [x], perm=[*range(x.rank)][::-1])], perm=[*range(x.rank)][::-1]
            )
    return b.node("Det", [x])
