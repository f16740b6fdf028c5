"""Random graphs, with patterns that single random operators rarely form: exporters' patterns, and pinned operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper
from random_constants import computed, parameters
from random_graphs import NEWEST_OPSET, Builder, RandomGraph, Rejected, Val
from random_operators import PROPOSALS, adapted, floats, integers, kernel, partner, propose, unsqueezed
from random_subgraphs import branches, loop, scan

from relayout.ops import Row, rows

I64, B = np.int64, np.bool_
PATTERNS: list[Callable[[Builder], Any]] = []


def pattern(build: Callable[[Builder], Any]) -> Callable[[Builder], Any]:
    PATTERNS.append(build)
    return build


def _mean(b: Builder, x: Val, axes: list[int], keepdims: int) -> Val:
    if b.opset < 18:
        return b.node("ReduceMean", [x], axes=axes, keepdims=keepdims)
    return b.node("ReduceMean", [x, b.ints(axes)], keepdims=keepdims)


@pattern
def inverse_transposes(b: Builder) -> Any:
    x = floats(b, 2)
    perm = b.perm(x.rank)
    y = b.node("Transpose", [x], perm=perm)
    if b.chance(0.5):
        y = b.node(b.draw.choice(["Relu", "Sigmoid", "Neg"]), [y])
    return b.node("Transpose", [y], perm=[int(p) for p in np.argsort(perm)])


@pattern
def channels_last_convolution(b: Builder) -> Any:
    x = floats(b, 4, 4)
    y = b.node("Transpose", [x], perm=(0, 3, 1, 2))
    size = [min(3, e) for e in y.shape[2:]]
    y = b.node("Conv", [y, kernel(b, (x.shape[3], x.shape[3], *size))], auto_pad="SAME_UPPER")
    y = b.node("Transpose", [y], perm=(0, 2, 3, 1))
    if b.chance(0.5):
        y = b.node("Relu", [y])
    return b.node("Add", [x, y]) if b.chance(0.7) and x.shape == y.shape else y


@pattern
def squeeze_and_excite(b: Builder) -> Any:
    x = floats(b, 4, 4)
    last = b.chance(0.5)
    pooled = _mean(b, x, [1, 2] if last else [2, 3], b.draw.choice([0, 1]))
    channels = x.shape[3] if last else x.shape[1]
    if pooled.rank == 4:
        pooled = b.node("Reshape", [pooled, b.ints([-1, channels])])
    gate = b.node("Sigmoid", [b.node("MatMul", [pooled, kernel(b, (channels, channels))])])
    shape = [x.shape[0], 1, 1, channels] if last else [x.shape[0], channels, 1, 1]
    if b.chance(0.5):
        gate = b.node("Reshape", [gate, b.ints(shape)])
    else:
        gate = unsqueezed(b, gate, [1, 2] if last else [2, 3])
    return b.node("Mul", [x, gate] if b.chance(0.5) else [gate, x])


@pattern
def channel_shuffle(b: Builder) -> Any:
    x = floats(b, 3)
    axis = 1 if b.chance(0.7) else x.rank - 1
    groups = [f for f in range(2, x.shape[axis]) if x.shape[axis] % f == 0]
    if not groups:
        raise Rejected("nothing to shuffle")
    group = b.draw.choice(groups)
    fine = [*x.shape[:axis], group, x.shape[axis] // group, *x.shape[axis + 1 :]]
    y = b.node("Reshape", [x, b.ints(fine)])
    perm = list(range(y.rank))
    perm[axis], perm[axis + 1] = axis + 1, axis
    y = b.node("Transpose", [y], perm=perm)
    if b.chance(0.3):
        y = b.node("Relu", [y])
    return b.node("Reshape", [y, b.ints(x.shape)])


@pattern
def space_to_depth_by_hand(b: Builder) -> Any:
    x = floats(b, 4, 4)
    n, c, h, w = x.shape
    if h % 2 or w % 2:
        x = b.node("Concat", [x, x], axis=2)
        x = b.node("Concat", [x, x], axis=3)
        n, c, h, w = x.shape
    y = b.node("Reshape", [x, b.ints([n, c, h // 2, 2, w // 2, 2])])
    y = b.node("Transpose", [y], perm=b.draw.choice([(0, 1, 3, 5, 2, 4), (0, 3, 5, 1, 2, 4), (0, 2, 4, 3, 5, 1)]))
    if b.chance(0.3):
        y = b.node("Relu", [y])
    return b.node("Reshape", [y, b.ints([n, 4 * c, h // 2, w // 2])])


@pattern
def attention(b: Builder) -> Any:
    x = floats(b, 3, 3)
    n, s, c = x.shape
    heads = b.draw.choice([f for f in range(1, c + 1) if c % f == 0])
    is_joint, width = b.chance(0.4), c // heads
    split = b.ints([n, s, heads, (3 if is_joint else 1) * width] if b.chance(0.5) else [0, 0, heads, -1])
    if is_joint:
        joint = b.node("Reshape", [b.node("MatMul", [x, kernel(b, (c, 3 * c))]), split])
        q, k, v = (
            b.node("Slice", [joint, b.ints([at]), b.ints([at + width]), b.ints([3])])
            for at in range(0, 3 * width, width)
        )
    else:
        q, k, v = (b.node("Reshape", [b.node("MatMul", [x, kernel(b, (c, c))]), split]) for _ in range(3))
    q, v = (b.node("Transpose", [t], perm=(0, 2, 1, 3)) for t in (q, v))
    k = b.node("Transpose", [k], perm=(0, 2, 3, 1))
    scores = b.node("Mul", [b.node("MatMul", [q, k]), b.constant(0.5, b.real)])
    if b.chance(0.4):
        scores = b.node("Add", [scores, partner(b, scores, within=True)])
    mixed = b.node("MatMul", [b.node("Softmax", [scores], axis=3), v])
    mixed = b.node("Transpose", [mixed], perm=(0, 2, 1, 3))
    return b.node("Reshape", [mixed, b.ints([n, s, c] if b.chance(0.5) else [0, 0, -1])])


@pattern
def flatten_into_gemm(b: Builder) -> Any:
    x = floats(b, 3, 4)
    if b.chance(0.6):
        x = b.node("Transpose", [x], perm=b.perm(x.rank))
    y = b.node("Flatten", [x]) if b.chance(0.5) else b.node("Reshape", [x, b.ints([x.shape[0], -1])])
    w = kernel(b, (y.shape[1], 3))
    return b.node("Gemm", [y, w, b.weight(3)]) if b.chance(0.6) else b.node("MatMul", [y, w])


@pattern
def computed_bias(b: Builder) -> Any:
    """A computed constant of lower rank than the value to which it is added."""
    x = floats(b, 2)
    size = x.shape[-1]
    kind = b.draw.random()
    if kind < 0.3 and size > 1:
        parts = [b.weight(1), b.weight(size - 1)]
        bias = b.node("Concat", parts, axis=0)
    elif kind < 0.6:
        bias = b.node("Reshape", [b.weight(size), b.ints(b.draw.choice([[size], [1, size], [size, 1]]))])
    elif kind < 0.8:
        bias = b.node("Transpose", [b.weight(size, x.shape[-2])], perm=(1, 0))
    else:
        bias = b.node("Mul", [b.weight(x.shape[-2], 1), b.weight(size)])
    return b.node("Add", [x, bias] if b.chance(0.6) else [bias, x])


@pattern
def shared_parameter(b: Builder) -> Any:
    """A computed constant that several operators read in several layouts."""
    x = floats(b, 2)
    b.is_constant = True
    try:
        weight = computed(b, x.shape if b.chance(0.5) else tuple(x.shape[-2:]), b.real, -1, 1)
    finally:
        b.is_constant = False
    perm = b.perm(x.rank)
    made = [b.node(b.draw.choice(["Add", "Mul", "Sub"]), [x, weight])]
    if weight.rank == x.rank:
        transposed = b.node("Transpose", [weight], perm=perm)
        made.append(b.node("Add", [b.node("Transpose", [x], perm=perm), transposed]))
    if weight.shape[-1] == x.shape[-1] and weight.rank == 2:
        made.append(b.node("MatMul", [x, b.node("Transpose", [weight], perm=(1, 0))]))
    if x.rank == 4 and weight.rank == 4 and x.shape[0] * x.shape[1] <= 12:
        image = b.node("Transpose", [x], perm=(0, 3, 1, 2)) if b.chance(0.5) else x
        if image.shape[1] == weight.shape[1]:
            made.append(b.node("Conv", [image, weight], auto_pad="SAME_UPPER"))
    return made


@pattern
def quantised_island(b: Builder) -> Any:
    x = floats(b, 2)
    scale, zero = b.constant(0.04, b.real), b.constant(20, np.uint8)
    y = b.node("QuantizeLinear", [x, scale, zero])
    if b.chance(0.5):
        y = b.node("Transpose", [y], perm=b.perm(x.rank))
    return b.node("DequantizeLinear", [y, scale, zero])


@pattern
def shape_arithmetic(b: Builder) -> Any:
    """Reshape to a shape that is computed from a tensor's Shape at run time."""
    x = floats(b, 2, 4)
    shape = b.node("Shape", [x])
    kind = b.draw.random()
    if kind < 0.35:
        first = b.node("Gather", [shape, b.ints([0])], axis=0)
        return b.node("Reshape", [x, b.node("Concat", [first, b.ints([-1])], axis=0)])
    if kind < 0.6:
        which = b.draw.sample(range(x.rank), x.rank)
        parts = [b.node("Gather", [shape, b.ints([axis])], axis=0) for axis in which]
        return b.node("Reshape", [x, b.node("Concat", parts, axis=0)])
    if kind < 0.75:
        last = b.node("Gather", [shape, b.ints(x.rank - 1)], axis=0)
        last = unsqueezed(b, last, [0])
        return b.node("Reshape", [x, b.node("Concat", [b.ints([-1]), last], axis=0)])
    if kind < 0.9 and b.opset >= 9:
        ones = b.node("ConstantOfShape", [shape], value=helper.make_tensor("value", 1, [1], [0.5]))
        return b.node("Add", [x, ones])
    if b.opset < 8:
        raise Rejected("no Expand yet")
    low = b.input((1,) * (x.rank - 1) + (x.shape[-1],))
    return b.node("Expand", [low, shape])


@pattern
def resize_to_another(b: Builder) -> Any:
    if b.opset < 13:
        raise Rejected("no sizes yet")
    x = floats(b, 4, 4)
    head = b.node("Slice", [b.node("Shape", [x]), b.ints([0]), b.ints([2])])
    sizes = b.node("Concat", [head, b.ints([x.shape[2] + 1, 2 * x.shape[3]])], axis=0)
    return b.node("Resize", [x, None, None, sizes], mode="nearest")


for _build in (branches, loop, scan):
    pattern(_build)


@pattern
def pinned(b: Builder) -> Any:
    """An operator without a row in the op table."""
    kind = b.draw.choice(["NonZero", "EyeLike", "GatherND", "ScatterND", "Unique", "LSTM", "CenterCropPad", "Sequence"])
    if kind == "NonZero":
        return b.node("NonZero", [floats(b, 1, 4)])
    if kind == "EyeLike":
        return b.node("EyeLike", [floats(b, 2, 2)], k=b.draw.choice([0, 1]))
    if kind == "GatherND":
        x = floats(b, 2)
        depth = b.draw.randint(1, x.rank)
        index = np.stack([b.array((3,), I64, 0, x.shape[a] - 1) for a in range(depth)], -1)
        return b.node("GatherND", [x, b.constant(index)])
    if kind == "ScatterND":
        x = floats(b, 2)
        row = b.input((1, *x.shape[1:]))
        return b.node("ScatterND", [x, b.constant(np.array([[x.shape[0] - 1]])), row])
    if kind == "Unique":
        return b.node("Unique", [integers(b, dtype=I64)], results=4)
    if kind == "LSTM":
        x = floats(b, 3, 3)
        size = x.shape[2]
        y, last, _ = b.node("LSTM", [x, b.weight(1, 8, size), b.weight(1, 8, 2)], results=3, hidden_size=2)
        return y, last
    if kind == "CenterCropPad":
        x = floats(b, 2)
        return b.node("CenterCropPad", [x, b.ints([2, 3])], axes=b.draw.sample(range(x.rank), 2))
    raise Rejected("sequences have a pattern of their own")


@pattern
def foreign_operator(b: Builder) -> Any:
    """An operator of another domain, for which ONNX infers no shape. The first has no row in the operator table."""
    b.domains["com.microsoft"] = 1
    x = floats(b, 1)
    kind = b.draw.choice(["SampleOp", "SampleOp", "Gelu", "BiasGelu"])  # the op table has no row of the first
    if kind == "BiasGelu":
        return b.node("BiasGelu", [x, b.weight(x.shape[-1])], domain="com.microsoft")
    return b.node(kind, [x], domain="com.microsoft")


@pattern
def contributed(b: Builder) -> Any:
    """An operator of onnxruntime's own that moves with its data, often behind a Transpose."""
    b.domains["com.microsoft"] = 1
    x = floats(b, 2, 4)
    if b.chance(0.5):
        x = b.node("Transpose", [x], perm=b.perm(x.rank))
    size, other = x.shape[-1], partner(b, x)
    kind = b.draw.choice(
        "FastGelu QuickGelu FusedMatMul SkipLayerNormalization SkipSimplifiedLayerNormalization "
        "DynamicQuantizeMatMul MatMulIntegerToFloat".split()
    )
    if kind == "FastGelu":
        return b.node(kind, [x, b.weight(size)] if b.chance(0.5) else [x], domain="com.microsoft")
    if kind == "QuickGelu":
        return b.node(kind, [x], domain="com.microsoft", alpha=b.draw.choice([None, 1.25]))
    if kind == "FusedMatMul":
        columns = b.extent()
        is_turned, weight = b.chance(0.5), (size, columns)
        read = kernel(b, weight[::-1] if is_turned else weight)
        return b.node(kind, [x, read], domain="com.microsoft", transB=int(is_turned), alpha=0.5)
    if kind.startswith("Skip"):
        if x.rank != 3 or other.shape != x.shape:
            other = b.input(x.shape, b.real)
        shift = [b.weight(size)] if kind == "SkipLayerNormalization" else []
        return b.node(kind, [x, other, b.weight(size), *shift], domain="com.microsoft")
    columns, scale = b.extent(), b.constant(0.03, b.real)
    read = b.parameter((size, columns), np.int8, -100, 100)
    if kind == "DynamicQuantizeMatMul":
        return b.node(kind, [x, read, scale], domain="com.microsoft")
    zero = b.constant(20, np.uint8)
    steps = b.node("QuantizeLinear", [x, b.constant(0.04, b.real), zero])
    return b.node(kind, [steps, read, b.constant(0.04, b.real), scale, zero], domain="com.microsoft")


@pattern
def local_function(b: Builder) -> Any:
    """A call of a model-local function with a Transpose inside."""
    b.domains["local"] = 1
    if not b.functions:
        nodes = [
            helper.make_node("Transpose", ["a"], ["t"]),
            helper.make_node("Relu", ["t"], ["r"]),
        ]
        opsets = [helper.make_opsetid("", b.opset)]
        b.functions.append(helper.make_function("local", "TransposedRelu", ["a"], ["r"], nodes, opsets))
    return b.node("TransposedRelu", [floats(b, 2)], domain="local")


@pattern
def fan_out(b: Builder) -> Any:
    """Several consumers of one value, each behind its own Transpose."""
    x = floats(b, 2)
    perm = b.perm(x.rank)
    made = [
        b.node(b.draw.choice(["Relu", "Sigmoid", "Neg", "Abs"]), [b.node("Transpose", [x], perm=perm)])
        for _ in range(b.draw.randint(2, 3))
    ]
    return b.node("Sum", made) if b.opset >= 8 else made


@pattern
def transposed_broadcast(b: Builder) -> Any:
    """Two transposed operands of different ranks, so that the broadcast axes move."""
    x = floats(b, 2)
    low = partner(b, x, within=True)
    perm = b.perm(x.rank)
    y = b.node("Transpose", [x], perm=perm)
    if low.rank == x.rank:
        other = b.node("Transpose", [low], perm=perm)
    else:
        full = b.node("Reshape", [low, b.ints([1] * (x.rank - low.rank) + list(low.shape))])
        other = b.node("Transpose", [full], perm=perm)
    return b.node(b.draw.choice(["Add", "Mul", "Sub"]), [y, other] if b.chance(0.5) else [other, y])


@pattern
def views_of_a_view(b: Builder) -> Any:
    x = floats(b, 2)
    for _ in range(b.draw.randint(2, 4)):
        x = b.node("Transpose", [x], perm=b.perm(x.rank)) if b.chance(0.5) else adapted(b, x, b.draw.randint(1, 5))
    return x


def forced_row(seed: int) -> Row:
    """The row of the op table that the graph of this seed should contain; seeds cycle through the rows of ONNX."""
    table = _onnx_rows()
    return table[seed % len(table)]


def _onnx_rows() -> list[Row]:
    return [row for row in rows() if not row.domain and onnx.defs.has(row.operator)]


@cache
def _opsets(operator: str, since: int) -> tuple[int, int]:
    """The first and the last opset to which this row of the op table applies."""
    later = [r.since for r in _onnx_rows() if r.operator == operator and r.since > since]
    newest = min([*(since - 1 for since in later), NEWEST_OPSET])
    versions = _versions()[operator]
    usable = [first for first, is_deprecated in versions if not is_deprecated]
    retired = [first for first, is_deprecated in versions if is_deprecated and first > max(usable)]
    return max(since, min(usable)), min([newest, *(version - 1 for version in retired)])


@cache
def _versions() -> dict[str, list[tuple[int, bool]]]:
    """The first opset of each version of each of ONNX's operators, and whether the version is deprecated."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append((schema.since_version, schema.deprecated))
    return found


def draw_graph(seed: int) -> RandomGraph:
    """The graph for this seed, the same on every machine. Raises Rejected, rarely, if no graph results."""
    row = forced_row(seed)
    b = Builder(seed, NEWEST_OPSET)
    b.opset = b.draw.randint(*_opsets(row.operator, row.since))
    b.symbolic = b.chance(0.3)
    b.real = b.draw.choices([np.float32, np.float64, np.float16], [88, 8, 4])[0]
    b.computes = computed
    for _ in range(b.draw.randint(1, 2)):
        rank = b.draw.choice([1, 2, 3, 3, 4, 4, 4, 4, 5])
        b.input(b.shape(rank))
    if b.chance(0.15):
        with suppress(Rejected):
            parameters(b, row.operator)
    target = b.draw.randint(2, 12)
    force_at = b.draw.randint(0, target - 1)
    attempts = 0
    forced = False
    while (b.moving < target or not forced) and attempts < 80:
        attempts += 1
        if attempts == 40 and not forced:
            b.real = np.float32  # onnxruntime lacks some operators for other types
        try:
            if not forced and b.moving >= force_at:
                propose(b, row.operator)
                made = [node.output[0] for node in b.nodes if node.op_type == row.operator]
                b.kept += made[-1:]
                forced = bool(made)
            elif b.chance(0.3):
                b.draw.choice(PATTERNS)(b)
            elif b.chance(0.35):
                propose(
                    b,
                    b.draw.choice(
                        ["Transpose", "Transpose", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"]
                    ),
                )
            else:
                propose(b, b.draw.choice(list(PROPOSALS)))
        except Rejected:
            continue
    return b.finish()
