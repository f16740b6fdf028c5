"""Random Split, Concat, Pad, Slice, Gather and similar operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper
from random_graphs import Builder, Rejected, Val
from random_operands import axis_of, floats, indices, integers, proposes

I64, B = np.int64, np.bool_


@proposes("Concat")
def concat(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = b.draw.randrange(x.rank)

    def alike(v: Val) -> bool:
        return (
            v.dtype == b.real
            and v.rank == x.rank
            and all(e == f or a == axis for a, (e, f) in enumerate(zip(v.shape, x.shape, strict=True)))
        )

    rest: list[Val] = []
    for _ in range(b.draw.randint(0 if b.chance(0.1) else 1, 3)):
        other = b.pick(alike)
        if other is None or b.chance(0.3):
            shape = tuple(b.extent() if a == axis else e for a, e in enumerate(x.shape))
            other = b.parameter(shape) if b.chance(0.5) or len(b.inputs) > 5 else b.input(shape)
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
    if b.opset >= 18 and parts > 1 and (parts - 1) * -(-extent // parts) < extent and b.chance(0.4):
        return b.node("Split", [x], results=parts, axis=signed, num_outputs=parts)  # the last one may be smaller
    if even and b.opset < 18:
        return b.node("Split", [x], results=parts, axis=signed)
    if b.opset >= 13:
        return b.node("Split", [x, b.ints(sizes)], results=parts, axis=signed)
    return b.node("Split", [x], results=parts, axis=signed, split=sizes)


@proposes("GatherElements")
def gather_elements(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = axis_of(b, x.rank)
    shape = list(x.shape)
    shape[axis] = b.extent()
    if b.chance(0.2):
        shape = [b.draw.randint(1, e) if a != axis % x.rank else e for a, e in enumerate(shape)]
    return b.node("GatherElements", [x, indices(b, tuple(shape), x.shape[axis] - 1)], axis=axis)


@proposes("ScatterElements", "Scatter")
def scatter_elements(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    if operator == "ScatterElements" and b.opset < 11:
        raise Rejected("not yet there")
    axis = axis_of(b, x.rank)
    shape = list(x.shape)
    count = b.draw.randint(1, x.shape[axis])
    shape[axis] = count
    # Every index once: the result of duplicate indices is undefined.
    order = np.argsort(b.numbers.random(x.shape), axis=axis).take(range(count), axis=axis).astype(I64)
    updates = b.pick(lambda v: v.dtype == b.real and v.shape == tuple(shape)) or b.input(tuple(shape))
    reduction = {"reduction": "add"} if operator == "ScatterElements" and b.opset >= 16 and b.chance(0.2) else {}
    return b.node(operator, [x, b.constant(order), updates], axis=axis, **reduction)


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
    value = b.constant(0.25, b.real) if mode == "constant" and b.chance(0.5) else None
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
            low, high = low - extent, high - extent if high < extent else (1 << 31) - 1
        starts.append(low), ends.append(high), steps.append(step)
    if b.opset < 10:
        return b.node("Slice", [x], starts=starts, ends=ends, axes=None if default else axes)
    signed = [a - x.rank if b.chance(0.3) else a for a in axes]
    kind = np.int32 if b.chance(0.3) else I64
    numbers = [starts, ends, None if default else signed, steps if set(steps) != {1} else None]
    given = [x, *(b.constant(n, kind) if n is not None else None for n in numbers)]
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


@proposes("ConstantOfShape")
def constant_of_shape(b: Builder, operator: str) -> Any:
    """In the shape of another value, which is computed at run time where its extents are open."""
    like = floats(b, 1)
    number = numpy_helper.from_array(b.array((1,), b.real))
    return b.node("Add", [like, b.node("ConstantOfShape", [b.node("Shape", [like])], value=number)])


@proposes("Gather")
def gather(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    axis = axis_of(b, x.rank)
    shape = tuple(b.extent() for _ in range(b.draw.choice([0, 1, 1, 2])))
    return b.node("Gather", [x, indices(b, shape, x.shape[axis] - 1)], axis=axis)


@proposes("Compress")
def compress(b: Builder, operator: str) -> Any:
    x = floats(b, 1)
    if b.chance(0.15):
        return b.node("Compress", [x, b.parameter((x.array.size,), B)])
    axis = axis_of(b, x.rank)
    condition = b.array((x.shape[axis],), B)
    condition[0] = True
    return b.node("Compress", [x, b.constant(condition)], axis=axis)


@proposes("OneHot")
def one_hot(b: Builder, operator: str) -> Any:
    x = b.pick(lambda v: v.dtype == I64 and v.rank <= 4 and v.array.size) or integers(b, dtype=I64)
    axis = b.draw.choice([-1, *range(x.rank + 1)])
    depth = b.constant(np.array(b.draw.choice([3, 5]), I64))
    return b.node("OneHot", [x, depth, b.constant(np.array([0.25, 1.5], b.real))], axis=axis)
