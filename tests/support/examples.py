"""At least one example for every row of the op table. Tests compare each row's results numerically."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayout.ops import Row, rows
from relayout.ops.elementwise import BROADCAST, UNARY

F, D, I64, I32, I8, U8, B = (np.float32, np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_)


@dataclass(frozen=True, eq=False)
class Input:
    """A run-time input of random numbers in [`low`, `high`]. `permuted`: its axes follow the format under test."""

    shape: tuple[int, ...]
    dtype: Any = F
    low: float = -2.0
    high: float = 2.0
    permuted: bool = True


@dataclass(frozen=True, eq=False)
class Constant:
    array: Any
    dtype: Any = I64


@dataclass(frozen=True, eq=False)
class Example:
    """A node: operator, opset, inputs (None: omitted), attributes.

    `moves`: the row must accept some format other than the identity format without a transpose, else the test is empty.
    """

    operator: str
    inputs: tuple[Input | Constant | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    results: int = 1
    moves: bool = True
    domain: str = ""


X = Input((2, 3, 4, 5))
POSITIVE = Input((2, 3, 4, 5), low=1.0, high=2.0)
UNIT = Input((2, 3, 4, 5), low=-0.9, high=0.9)
WHOLE = Input((2, 3, 4, 5), I32, 0, 7)
FLAG = Input((2, 3, 4, 5), B, 0, 2)
SPECIAL: dict[str, Input] = {
    **dict.fromkeys(("Acos", "Asin", "Atanh"), UNIT),
    **dict.fromkeys(("Acosh", "Log", "Reciprocal", "Sqrt"), POSITIVE),
    "BitwiseNot": WHOLE,
    "Not": FLAG,
}
SINCE = {"BitwiseNot": 18, "Celu": 12, "Gelu": 20, "HardSwish": 14, "IsInf": 10, "Mish": 18, "Round": 11, "Swish": 24}
ATTRIBUTES = {"Cast": {"to": 6}, "BitShift": {"direction": "LEFT"}, "Mod": {"fmod": 1}}
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
WHOLE_OPERATORS = {"BitShift": (U8, 11), "BitwiseAnd": (I32, 18), "BitwiseOr": (I32, 18), "BitwiseXor": (I32, 18)}


def scale(number: float = 0.05, zero: int = 3, dtype: Any = U8) -> tuple[Constant, Constant]:
    """A scale and a zero point."""
    return Constant(np.array(number), F), Constant(np.array(zero), dtype)


def _unary() -> list[Example]:
    found = []
    for name in UNARY:
        opset = max(SINCE.get(name, 7), 18 if name not in ("Gelu", "Swish") else SINCE[name])
        found.append(Example(name, (SPECIAL.get(name, X),), ATTRIBUTES.get(name, {}), opset))
    found += [
        Example(name, (SPECIAL.get(name, X),), ATTRIBUTES.get(name, {}), 9) for name in ("Relu", "Exp", "Sigmoid")
    ]
    return found


def _broadcast() -> list[Example]:
    found = []
    for name in BROADCAST:
        attributes = ATTRIBUTES.get(name, {})
        if name == "Where":
            shapes: Sequence[tuple[int, ...]] = ((2, 3, 4, 5), (3, 1, 1), ())
            found.append(Example(name, (Input(shapes[0], B, 0, 2), X, Input((3, 1, 1))), {}, 18))
            continue
        if name in WHOLE_OPERATORS:
            dtype, opset = WHOLE_OPERATORS[name]
            full, low = Input((2, 3, 4, 5), dtype, 0, 5), Input((4, 5), dtype, 0, 3)
            found.append(Example(name, (full, low), attributes, max(opset, 18)))
            continue
        if name in ("And", "Or", "Xor"):
            found.append(Example(name, (FLAG, Input((4, 1), B, 0, 2)), {}, 18))
            continue
        first = POSITIVE if name == "Pow" else X
        second = Input((2, 3, 4, 5), low=0.5, high=2.0)
        found.append(Example(name, (first, second), attributes, 18))
        found.append(Example(name, (first, Input((3, 1, 5), low=0.5, high=2.0)), attributes, 18))
        found.append(Example(name, (first, Input((5,), low=0.5, high=2.0)), attributes, 18))
        found.append(Example(name, (first, Constant(np.linspace(0.5, 2, 3).reshape(3, 1, 1), F)), attributes, 13))
    found.append(Example("Add", (Input((4, 5)), Input((2, 3, 1, 1)))))
    found.append(Example("Sum", (X, Input((5,)), Input((3, 1, 1)))))
    found.append(Example("Max", (X, Input((4, 1)), Constant([0.5], F))))
    return found


def _axes() -> list[Example]:
    found = []
    for name in ("Softmax", "LogSoftmax", "Hardmax"):
        found += [Example(name, (X,), {"axis": axis}, opset) for axis in (1, -1) for opset in (13, 18)]
        found += [
            Example(name, (X,), {"axis": 2}, 11, moves=name != "Hardmax"),
            Example(name, (X,), {}, 11, moves=name != "Hardmax"),
            Example(name, (Input((2, 7, 1, 1)),), {"axis": 1}, 11),
            Example(name, (Input((3, 4, 1, 5)),), {"axis": 3}, 11),
        ]
    for name in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
                 "ReduceProd", "ReduceSum", "ReduceSumSquare"):  # fmt: skip
        source = POSITIVE if name == "ReduceLogSum" else X
        found.append(Example(name, (source,), {"axes": [1, -1], "keepdims": 1}, 12))
        found.append(Example(name, (source,), {"axes": [2], "keepdims": 0}, 12))
        found.append(Example(name, (source,), {}, 12))
        found.append(Example(name, (source, Constant([1, 2])), {"keepdims": 0}, 18))
        found.append(Example(name, (source, Constant([-3])), {}, 18))
    found.append(Example("ReduceSum", (X, Constant([3])), {"keepdims": 0}, 13))
    for name in ("ArgMax", "ArgMin"):
        found += [Example(name, (X,), {"axis": a, "keepdims": k}, 13) for a, k in ((1, 1), (-1, 0))]
    found += [
        Example("Concat", (X, Input((2, 2, 4, 5)), Constant(np.ones((2, 1, 4, 5)), F)), {"axis": 1}),
        Example("Concat", (X, X), {"axis": -1}, 11),
        Example("Split", (X,), {"axis": 2, "split": [1, 3]}, 11, results=2),
        Example("Split", (X, Constant([2, 3])), {"axis": -1}, 13, results=2),
        Example("Split", (X,), {"axis": 2, "num_outputs": 2}, 18, results=2),
        Example("LpNormalization", (X,), {"axis": 1}),
        Example("TopK", (X,), {"axis": 2, "k": 2}, 9, results=2),
        Example("TopK", (X, Constant([2])), {"axis": -3}, 11, results=2),
        Example("GatherElements", (X, Input((2, 3, 2, 5), I64, 0, 4)), {"axis": 2}),
        Example("ScatterElements", (X, Constant(np.zeros((2, 3, 1, 5))), Input((2, 3, 1, 5))), {"axis": 2}),
        Example("Scatter", (X, Constant(np.zeros((2, 1, 4, 5))), Input((2, 1, 4, 5))), {"axis": 1}, 9),
        Example("CumSum", (X, Constant(np.array(-1))), {"reverse": 1}),
        Example("CumSum", (X, Constant([1])), {"exclusive": 1}),
        Example("CumProd", (X, Constant(np.array(2))), {}, 26),
        Example("Pad", (X,), {"pads": [0, 1, 0, 2, 0, 0, 3, 1]}, 10),
        Example("Pad", (X, Constant([0, 1, 0, 2, 0, 0, 3, 1]), Constant(np.array(0.5), F)), {}, 13),
        Example("Pad", (X, Constant([1, 2, 0, 1]), None, Constant([-1, 1])), {"mode": "edge"}, 18),
        Example("Pad", (X, Constant([0, 1, 1, 0, 0, 1, 0, 2])), {"mode": "reflect"}, 13),
        Example("Slice", (X,), {"starts": [1, 0], "ends": [3, 4], "axes": [1, 3]}, 9),
        Example("Slice", (X,), {"starts": [1, 0], "ends": [2, 2]}, 9),
        Example("Slice", (X, Constant([0, -1]), Constant([2, -9]), Constant([-1, 1]), Constant([1, -1])), {}, 13),
        Example("Slice", (X, Constant([0, 1, 1]), Constant([1, 3, 4])), {}, 13),
        Example("Slice", (X, Constant([3, 0]), Constant([0, 9]), None, Constant([-1, 2])), {}, 13, moves=False),
        Example("Slice", (X, Constant([0, 1], I32), Constant([2, 3], I32)), {}, 13),
        Example("Slice", (X, Constant([3, 0], I32), Constant([0, 4], I32), None, Constant([-1, 2], I32)), {}, 10),
        Example("Slice", (X, Input((1,), I32, 0, 1, permuted=False), Constant([2], I32), Constant([1], I32)), {}, 13),
        Example("Pad", (X, Input((8,), I64, 0, 3, permuted=False)), {}, 13),
        Example("Pad", (X, Input((4,), I64, 0, 3, permuted=False), None, Constant([-1, 1])), {}, 18),
        Example("Tile", (X, Constant([1, 2, 1, 3]))),
        Example("Tile", (X, Input((4,), I64, 1, 3, permuted=False))),
        Example("Expand", (Input((3, 1, 5)), Constant([2, 3, 4, 5])), moves=False),
        Example("Expand", (Input((2, 3, 1, 5)), Constant([4, 1]))),
        Example("Expand", (X, Input((4,), I64, 1, 2, permuted=False))),
        Example("ConstantOfShape", (Input((4,), I64, 1, 6, permuted=False),), moves=False),
        Example("Gather", (X, Constant([0, 2])), {"axis": 1}),
        Example("Gather", (X, Constant(np.array(1))), {"axis": -1}),
        Example("Gather", (X, Input((2, 2), I64, 0, 3, permuted=False)), {"axis": 2}, moves=False),
        Example("LayerNormalization", (X, Input((5,)), Input((5,)))),
        Example(
            "LayerNormalization",
            (X, Constant(np.arange(20).reshape(4, 5), F), Constant(np.ones((4, 5)), F)),
            {"axis": 2},
        ),
        Example("LayerNormalization", (X, Input((4, 5))), {"axis": -2}),
        Example("LayerNormalization", (X, Input((5,)), Input((5,))), {}, 14),
        Example("SimplifiedLayerNormalization", (X, Constant(np.arange(1, 6), F)), {"axis": -1}, 14),
        Example("SimplifiedLayerNormalization", (X, Input((4, 5))), {"axis": 2}, 20),
        Example("RMSNormalization", (X, Constant(np.arange(1, 6), F)), {}, 23),
        Example("MeanVarianceNormalization", (X,), {"axes": [0, 2, 3]}),
        Example("MeanVarianceNormalization", (X,), {"axes": [1, 2]}),
        Example("ReverseSequence", (X, Constant([1, 3])), {"batch_axis": 0, "time_axis": 1}),
        Example("Trilu", (X,), {"upper": 0}),
        Example("Trilu", (X, Constant(np.array(1))), {}),
        Example("Det", (Input((2, 3, 4, 4)),), moves=False),
        Example("Compress", (X, Constant([True, False, True], B)), {"axis": 1}),
        Example(
            "OneHot",
            (Input((2, 3, 4), I64, 0, 5), Constant(np.array(5)), Constant([0.0, 1.0], F)),
            {"axis": 1},
            moves=False,
        ),
        Example("Clip", (X, Constant(np.array(-0.5), F), Constant(np.array(0.5), F))),
        Example("Clip", (X,), {"min": -0.5, "max": 0.5}, 10),
        Example("CastLike", (X, Constant([1], I32)), {}, 15),
        Example("Shape", (X,), {}, 13, moves=False),
        Example("Size", (X,), {}, 13),
        Example("DynamicQuantizeLinear", (X,), {}, 11, results=3),
        Example("QuantizeLinear", (X, Constant(np.array(0.02), F), Constant(np.array(3), U8)), {}, 10),
        Example("QuantizeLinear", (X, Constant([0.1, 0.2, 0.3], F), Constant([0, 1, 2], I8)), {}, 10),
        Example("QuantizeLinear", (X, Constant([0.1, 0.2, 0.3], F), Constant([0, 1, 2], I8)), {"axis": 1}, 13),
        Example("QuantizeLinear", (X, Constant(np.full((2, 3, 2, 5), 0.1), F)), {"axis": 2, "block_size": 2}, 21),
        Example("DequantizeLinear", (Input((2, 3, 4, 5), U8, 0, 255), Constant(np.array(0.1), F)), {}, 10),
        Example(
            "DequantizeLinear",
            (Input((2, 3, 4, 5), I8, -100, 100), Constant([0.1, 0.2, 0.3], F), Constant([0, 1, 2], I8)),
            {"axis": -3},
            13,
        ),
    ]
    return found


def _spatial() -> list[Example]:
    image, weights = Input((2, 4, 6, 5)), np.random.default_rng(1).standard_normal
    kernel, bias = Constant(weights((6, 4, 3, 3)), F), Constant(weights(6), F)
    codes = Constant(np.arange(48).reshape(3, 4, 2, 2), U8)
    affine = (Constant(np.arange(1, 5), F), Constant(np.ones(4), F))
    return [
        Example("BatchNormalization", (image, *affine, Constant(np.zeros(4), F), Constant(np.full(4, 2.0), F)), {}, 15),
        Example("InstanceNormalization", (image, *affine), moves=False),
        Example("GroupNormalization", (image, *affine), {"num_groups": 2}, 21, moves=False),
        Example("LRN", (image,), {"size": 3}, moves=False),
        *[Example(f"Global{kind}Pool", (image,)) for kind in ("Average", "Max", "Lp")],
        *[Example(f"{kind}Pool", (image,), WINDOW, moves=False) for kind in ("Average", "Max", "Lp")],
        Example("MaxPool", (image,), {"kernel_shape": [2, 2]}, 12, results=2, moves=False),
        Example(
            "MaxUnpool",
            (Input((1, 2, 2, 2)), Constant(np.array([0, 3, 9, 10, 16, 19, 25, 26]).reshape(1, 2, 2, 2))),
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            11,
            moves=False,
        ),
        Example("DepthToSpace", (image,), {"blocksize": 2}, 13, moves=False),
        Example("SpaceToDepth", (Input((1, 2, 4, 6)),), {"blocksize": 2}, 13, moves=False),
        Example("Conv", (image, kernel, bias), {"pads": [1, 0, 1, 0]}, moves=False),
        Example("Conv", (image, Constant(weights((4, 1, 3, 3)), F)), {"group": 4, "strides": [2, 1]}, moves=False),
        Example("Conv", (Input((2, 4, 9)), Input((3, 4, 3))), {}, moves=False),
        Example("Conv", (Input((1, 2, 4, 5, 6)), Constant(weights((3, 2, 2, 2, 2)), F)), {}, moves=False),
        Example("ConvTranspose", (image, Constant(weights((4, 3, 3, 3)), F)), {"strides": [2, 2]}, moves=False),
        Example(
            "ConvInteger", (Input((2, 4, 6, 5), U8, 0, 9), Constant(np.ones((3, 4, 2, 2)), U8)), {}, 10, moves=False
        ),
        Example(
            "QLinearConv",
            (Input((2, 4, 6, 5), U8, 0, 255), *scale(0.1), codes, *scale(0.02, 9), *scale(0.5, 2)),
            {},
            10,
            moves=False,
        ),
        Example(
            "DeformConv",
            (Input((1, 2, 5, 5)), Constant(weights((3, 2, 2, 2)), F), Input((1, 8, 4, 4))),
            {},
            19,
            moves=False,
        ),
        Example(
            "GridSample",
            (Input((2, 3, 4, 5)), Input((2, 3, 2, 2), permuted=False, low=-0.9, high=0.9)),
            {},
            16,
            moves=False,
        ),
        Example(
            "RoiAlign",
            (Input((1, 3, 6, 6)), Constant([[0, 0, 4, 4], [1, 1, 5, 3]], F), Constant([0, 0])),
            {"output_height": 2, "output_width": 2},
            16,
            moves=False,
        ),
        Example(
            "MaxRoiPool",
            (Input((1, 3, 6, 6)), Constant([[0, 0, 0, 4, 4]], F)),
            {"pooled_shape": [2, 2]},
            11,
            moves=False,
        ),
        Example("Resize", (image, None, Constant([1, 1, 2, 3], F)), {"mode": "nearest"}, 13),
        Example("Resize", (image, None, None, Constant([2, 4, 12, 7])), {"mode": "linear"}, 13),
        Example("Resize", (image, None, None, Constant([9, 10])), {"mode": "linear", "axes": [2, 3]}, 18),
        Example("Resize", (image, None, Constant([1, 1, 2, 2], F)), {"mode": "cubic"}, 13),
        Example("Resize", (image, Constant([1, 1, 2, 2], F)), {"mode": "nearest"}, 10),
        Example("Upsample", (image, Constant([1, 1, 2, 2], F)), {}, 9),
        Example("Upsample", (image,), {"scales": [1.0, 1.0, 2.0, 2.0]}, 8),
    ]


def _contractions() -> list[Example]:
    numbers = np.random.default_rng(2).standard_normal
    digits, matrix, small = Input((2, 3, 4, 5), U8, 0, 9), Constant(np.arange(30).reshape(5, 6), U8), scale(0.1)
    by_column = Constant(np.arange(1, 7) / 10, F), Constant(np.arange(6), U8)
    angles = Constant(numbers((2, 4, 3)), F), Constant(numbers((2, 4, 3)), F)
    return [
        Example("MatMul", (X, Constant(numbers((5, 6)), F))),
        Example("MatMul", (X, Input((2, 3, 5, 6)))),
        Example("MatMul", (X, Input((3, 5, 6)))),
        Example("MatMul", (Input((4, 5)), Input((2, 3, 5, 6)))),
        Example("MatMul", (Input((4, 5)), Input((5, 6))), moves=False),
        Example("MatMul", (Input((5,)), Input((2, 3, 5, 6))), moves=False),
        Example("MatMulInteger", (digits, matrix), {}, 10),
        Example("MatMulInteger", (digits, matrix, Constant(np.array(3), U8), Constant(np.arange(6), U8)), {}, 10),
        Example("QLinearMatMul", (Input((2, 3, 4, 5), U8, 0, 255), *small, matrix, *small, *small), {}, 10),
        Example("QLinearMatMul", (digits, *small, matrix, *by_column, *small), {}, 10, moves=False),
        Example("Gemm", (Input((4, 5)), Constant(numbers((5, 6)), F), Constant(numbers(6), F)), moves=False),
        Example(
            "Gemm", (Input((5, 4)), Input((6, 5)), Input((6,))), {"transA": 1, "transB": 1, "alpha": 0.5}, moves=False
        ),
        Example("Attention", (X, Input((2, 3, 6, 5)), Input((2, 3, 6, 2))), {"scale": 0.5}, 23),
        Example("Attention", (Input((2, 6, 3, 5)), X, X, Constant(numbers((3, 4)), F)), {}, 24),
        Example("RotaryEmbedding", (Input((2, 3, 4, 6)), *angles), {"interleaved": 1}, 23),
        Example("Einsum", (X, Constant(numbers((5, 6)), F)), {"equation": "nchw,wd->nchd"}),
        Example("Einsum", (X, Input((2, 3, 6, 5))), {"equation": "bhqd, bhkd -> bhqk"}),
        Example("Einsum", (X,), {"equation": "abcd->acbd"}, moves=False),
    ]


def _relabels() -> list[Example]:
    return [
        Example("Transpose", (X,), {"perm": [0, 2, 3, 1]}, moves=False),
        Example("Transpose", (X,), {}, moves=False),
        Example("Identity", (X,)),
        Example("Dropout", (X,), {}, 10),
        Example("Dropout", (X,), {}, 13),
        Example("Squeeze", (Input((2, 1, 4, 1)),), {"axes": [1]}, 11),
        Example("Squeeze", (Input((2, 1, 4, 1)), Constant([-1])), {}, 13),
        Example("Squeeze", (Input((2, 1, 4, 1)),), {}, 13),
        Example("Unsqueeze", (Input((2, 3, 4)),), {"axes": [0, 4]}, 11, moves=False),
        Example("Unsqueeze", (Input((2, 3, 4)), Constant([-2])), {}, 13, moves=False),
        Example("Flatten", (Input((2, 3, 1, 1)),), {}),
        Example("Flatten", (X,), {"axis": 2}, moves=False),
        Example("Reshape", (Input((2, 3, 1, 1)), Constant([0, -1]))),
        Example("Reshape", (X, Constant([2, 12, 5])), moves=False),
        Example("Reshape", (Input((2, 6, 5)), Constant([2, 2, 3, 5])), moves=False),
    ]


def _contributed() -> list[Example]:
    """Operators of onnxruntime. Scales and zero points differ, so that one in another's place is found."""

    def quantized(operator: str, *inputs: Input | Constant | None, moves: bool = True, **attributes: Any) -> Example:
        return Example(operator, inputs, attributes, 17, moves=moves, domain="com.microsoft")

    data, image = Input((2, 3, 4, 5), U8, 0, 256), Input((2, 4, 6, 5), U8, 0, 256)
    signed = Input((2, 3, 4, 5), I8, -128, 128)
    other, result = scale(0.07, 128), scale(0.11, 77)
    matrix = Constant(np.random.default_rng(3).integers(-90, 90, (5, 6)), I8)
    columns = Constant(np.linspace(0.01, 0.03, 6), F), Constant(np.arange(6) - 3, I8)
    depthwise = Constant(np.arange(30).reshape(5, 1, 3, 2) - 12, I8)
    channels = Constant(np.linspace(0.01, 0.03, 5), F), Constant(np.zeros(5), I8)
    pixels, per_channel = Input((2, 5, 3, 6)), (Constant(np.arange(1, 7), F), Constant(np.arange(6) - 2, F))
    places = Constant(np.array([[0, 1, 2, 3], [2, 3, 4, 5]]))
    turns = np.arange(18).reshape(6, 3) / 9
    angles = Constant(np.cos(turns), F), Constant(np.sin(turns), F)
    packed, scales = Constant(np.arange(96).reshape(6, 1, 16) * 2, U8), Constant(np.linspace(0.01, 0.03, 6), F)
    return [
        quantized("QLinearAdd", data, *scale(), data, *other, *result),
        quantized("QLinearAdd", data, *scale(), Input((3, 1, 5), U8, 0, 256), *other, *result),
        quantized("QLinearAdd", Input((5,), U8, 0, 256), *scale(), data, *other, *result),
        quantized(
            "QLinearMul",
            signed,
            *scale(0.05, -3, I8),
            Input((3, 1, 1), I8, -90, 90),
            *scale(0.02, 9, I8),
            *scale(0.06, 1, I8),
        ),
        quantized("QLinearMul", data, *scale(), Constant(np.array([200]), U8), *other, *result),
        quantized("QLinearSigmoid", data, *scale(0.02, 128), *scale(1 / 256, 0)),
        quantized("QLinearLeakyRelu", data, *scale(0.02, 128), *result, alpha=0.3),
        quantized("QLinearWhere", Input((4, 1), B, 0, 2), data, *scale(), data, *other, *result),
        quantized("QLinearSoftmax", data, *scale(), *scale(1 / 256, 0), axis=1, opset=13),
        quantized("QLinearSoftmax", data, *scale(), *scale(1 / 256, 0), axis=-2, opset=13),
        quantized("QLinearSoftmax", data, *scale(), *scale(1 / 256, 0), axis=2, opset=11),
        quantized("QLinearConcat", *result, data, *scale(), Input((2, 2, 4, 5), U8, 0, 256), *other, axis=1),
        quantized("QLinearConcat", *result, data, *scale(), data, *other, data, *scale(0.1, 9), axis=-1),
        *[
            quantized("QLinearGlobalAveragePool", image, *scale(), *result, **last)
            for last in ({}, {"channels_last": 1})
        ],
        *[
            quantized("QLinearAveragePool", image, *scale(), *result, **WINDOW, **last)
            for last in ({}, {"channels_last": 1, "count_include_pad": 1})
        ],
        *[
            quantized("QLinearConv", of, *scale(), kernel, *each, *result, bias, **WINDOW, **last)
            for of, kernel, each, bias, last in (
                (image, Constant(np.arange(96).reshape(4, 4, 3, 2) - 50, I8), scale(0.01, 3, I8), None, {}),
                (image, depthwise, channels, Constant(np.arange(5) * 99, I32), {"channels_last": 1, "group": 5}),
                (Input((2, 6, 5, 1), U8, 0, 256), depthwise, channels, None, {"channels_last": 1}),
            )
        ],
        quantized(
            "QGemm", Input((4, 5), U8, 0, 256), *scale(), matrix, *scale(0.02, 4, I8), None, *result, moves=False
        ),
        quantized(
            "QGemm",
            Input((5, 4), U8, 0, 256),
            *scale(),
            matrix,
            *columns,
            Constant(np.arange(6) * 99, I32),
            transA=1,
            moves=False,
        ),
        quantized(
            "MatMulIntegerToFloat",
            data,
            matrix,
            scale()[0],
            columns[0],
            scale()[1],
            columns[1],
            Constant(np.arange(6), F),
        ),
        quantized("MatMulIntegerToFloat", data, Constant(np.full((3, 5, 6), 7), I8), *[scale()[0]] * 2),
        quantized("RotaryEmbedding", Input((2, 3, 4, 6)), places, *angles, interleaved=1, num_heads=3),
        quantized(
            "MatMulIntegerToFloat",
            data,
            Constant(np.full((3, 5, 6), 7), I8),
            scale()[0],
            Constant(np.arange(1, 19).reshape(3, 1, 6), F),
            moves=False,
        ),
        quantized("DynamicQuantizeMatMul", X, matrix, *columns),
        quantized("MatMulNBits", Input((2, 3, 32)), packed, scales, bits=4, block_size=32, K=32, N=6),
        quantized("FusedMatMul", X, Input((2, 3, 6, 5)), alpha=0.5, transB=1, moves=False),
        quantized(
            "FusedMatMul",
            Input((2, 3, 4, 5)),
            Constant(np.arange(24).reshape(6, 4), F),
            transA=1,
            transB=1,
            moves=False,
        ),
        quantized("FusedMatMul", Input((4, 2, 3, 5)), Input((2, 3, 5, 6)), transBatchA=1, moves=False),
        quantized("FusedMatMul", Input((5, 2, 3, 4)), Input((6, 2, 3, 5)), **BEHIND, transA=1, transB=1, moves=False),
        quantized("Gelu", X),
        quantized("QuickGelu", X, alpha=1.5),
        quantized("BiasGelu", X, Constant(np.arange(5), F)),
        quantized("FastGelu", X),
        quantized("FastGelu", X, Constant(np.arange(5), F)),
        *[
            quantized(f"Skip{kind}LayerNormalization", Input((2, 3, 5)), Input((2, 3, 5)), Constant(np.arange(5), F))
            for kind in ("", "Simplified")
        ],
        *[
            quantized(
                "GroupNorm",
                Input((2, 5, 3, 6)),
                *per_channel,
                groups=3,
                activation=activation,
                epsilon=1e-3,
                moves=False,
            )
            for activation in (0, 1)
        ],
        quantized("GroupNorm", Input((2, 6, 5, 3)), *per_channel, groups=2, activation=1, channels_last=0),
        quantized("SkipGroupNorm", pixels, *per_channel, pixels, per_channel[0], groups=3, activation=1, moves=False),
        quantized(
            "SkipGroupNorm",
            Input((2, 6, 5, 3)),
            *per_channel,
            Input((2, 6), permuted=False),
            per_channel[0],
            groups=3,
            activation=0,
            channels_last=0,
        ),
        quantized("SkipGroupNorm", pixels, *per_channel, Input((2, 1, 1, 6)), groups=3, activation=1, moves=False),
        quantized("BiasAdd", Input((2, 3, 5)), Constant(np.arange(5), F), Input((2, 3, 5))),
        quantized("BiasSplitGelu", Input((2, 3, 6)), Constant(np.arange(6), F)),
        quantized("QuantizeLinear", X, Constant([0.1, 0.2, 0.3], F), Constant([0, 1, 2], np.uint16), axis=1),
        quantized("DequantizeLinear", Input((2, 3, 4, 5), np.uint16, 0, 9999), Constant(np.array(0.1), F)),
    ]


BEHIND = {"transBatchA": 1, "transBatchB": 1}
EXAMPLES = [
    *_unary(), *_broadcast(), *_axes(), *_spatial(), *_contractions(), *_relabels(), *_contributed()
]  # fmt: skip


def row_of(example: Example) -> Row | None:
    """The row that applies to this example."""
    own = [r for r in rows() if (r.domain, r.operator) == (example.domain, example.operator)]
    # Of other domains all examples have version 1.
    applicable = [r for r in own if r.since <= (1 if example.domain else example.opset)]
    return applicable[-1] if applicable else None
